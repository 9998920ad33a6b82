/* A filesystem that misbehaves on demand: a passthrough of one directory with a delay per read request, a bandwidth
 * limit, and faults that are switched while it runs.
 *
 *   latfuse BACKING MOUNTPOINT [latency_us=N] [rate_mb_s=N] [max_background=N]
 *
 * It prints "ready" once mounted and ends when it is unmounted or killed. Every setting is an extended attribute of
 * the mount point, "user.latfuse.NAME", that can be set at any time:
 *
 *   latency_us, rate_mb_s    as above; 0 is none
 *   hang_at                  reads that reach this byte wait until the value changes
 *   error_at                 reads that reach this byte fail with EIO
 *   end_at                   reads end at this byte, although the size says otherwise
 *   flip_at                  the byte at this offset comes with one bit flipped
 *   refuse_direct            1: O_DIRECT is refused with EINVAL
 *   read_only, full          1: changes fail with EROFS; writes fail with ENOSPC
 *
 * The attribute "user.latfuse.stats" reads "requests bytes most_in_flight" and starts the count anew.
 */
#define FUSE_USE_VERSION 312
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <fuse.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

#define PREFIX "user.latfuse."
#define PATH_LIMIT 4096

enum { LATENCY_US, RATE_MB_S, HANG_AT, ERROR_AT, END_AT, FLIP_AT, REFUSE_DIRECT, READ_ONLY, FULL, SETTINGS };
static const char *const names[SETTINGS] = {"latency_us", "rate_mb_s", "hang_at", "error_at", "end_at",
                                            "flip_at", "refuse_direct", "read_only", "full"};
/* Offsets are "never" when negative. */
static _Atomic long settings[SETTINGS] = {[HANG_AT] = -1, [ERROR_AT] = -1, [END_AT] = -1, [FLIP_AT] = -1};
static unsigned max_background = 12;

static const char *backing;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static long requests, bytes, in_flight, most_in_flight;
static double link_free_at;

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec + t.tv_nsec * 1e-9;
}

static void sleep_until(double when) {
  struct timespec t = {.tv_sec = (time_t)when, .tv_nsec = (long)((when - (time_t)when) * 1e9)};
  while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL) == EINTR) {
  }
}

static int below(char *out, const char *path) {
  return snprintf(out, PATH_LIMIT, "%s%s", backing, path) < PATH_LIMIT ? 0 : -ENAMETOOLONG;
}

static int setting(const char *name) {
  for (int i = 0; i < SETTINGS; i++)
    if (strcmp(name, names[i]) == 0) return i;
  return -1;
}

static int reaches(int which, off_t offset, size_t size) {
  return settings[which] >= 0 && offset + (off_t)size > settings[which];
}

/* Account for one read, wait as long as its turn on the link and the delay take, and say how it is to fail. */
static int arrive(off_t offset, size_t size) {
  pthread_mutex_lock(&lock);
  requests++;
  bytes += size;
  if (++in_flight > most_in_flight) most_in_flight = in_flight;
  double when = now();
  if (settings[RATE_MB_S] > 0) {
    if (link_free_at < when) link_free_at = when;
    when = link_free_at += size / (settings[RATE_MB_S] * 1e6);
  }
  when += settings[LATENCY_US] * 1e-6;
  pthread_mutex_unlock(&lock);
  if (when > now()) sleep_until(when);
  pthread_mutex_lock(&lock);
  while (reaches(HANG_AT, offset, size)) pthread_cond_wait(&changed, &lock);
  int failed = reaches(ERROR_AT, offset, size) ? -EIO : 0;
  in_flight--;
  pthread_mutex_unlock(&lock);
  return failed;
}

static int do_read(const char *path, char *out, size_t size, off_t offset, struct fuse_file_info *info) {
  (void)path;
  int failed = arrive(offset, size);
  if (failed) return failed;
  if (settings[END_AT] >= 0) {
    if (offset >= settings[END_AT]) return 0;
    if (reaches(END_AT, offset, size)) size = settings[END_AT] - offset;
  }
  ssize_t got = pread(info->fh, out, size, offset);
  if (got < 0) return -errno;
  long flip = settings[FLIP_AT];
  if (flip >= offset && flip < offset + got) out[flip - offset] ^= 1;
  return got;
}

static int do_open(const char *path, struct fuse_file_info *info) {
  char real[PATH_LIMIT];
  int direct = info->flags & O_DIRECT, failed = below(real, path);
  if (failed) return failed;
  if (direct && settings[REFUSE_DIRECT]) return -EINVAL;
  if (settings[READ_ONLY] && (info->flags & O_ACCMODE) != O_RDONLY) return -EROFS;
  int fd = open(real, info->flags & ~(O_DIRECT | O_NOFOLLOW));
  if (fd < 0) return -errno;
  info->fh = fd;
  return 0;
}

static int do_create(const char *path, mode_t mode, struct fuse_file_info *info) {
  char real[PATH_LIMIT];
  int failed = below(real, path);
  if (failed) return failed;
  if (settings[READ_ONLY]) return -EROFS;
  int fd = open(real, (info->flags & ~O_DIRECT) | O_CREAT, mode);
  if (fd < 0) return -errno;
  info->fh = fd;
  return 0;
}

static int do_release(const char *path, struct fuse_file_info *info) {
  (void)path;
  close(info->fh);
  return 0;
}

static int do_write(const char *path, const char *in, size_t size, off_t offset, struct fuse_file_info *info) {
  (void)path;
  if (settings[FULL]) return -ENOSPC;
  ssize_t put = pwrite(info->fh, in, size, offset);
  return put < 0 ? -errno : put;
}

static int do_fsync(const char *path, int data_only, struct fuse_file_info *info) {
  (void)path, (void)data_only;
  return fsync(info->fh) ? -errno : 0;
}

static int do_getattr(const char *path, struct stat *out, struct fuse_file_info *info) {
  char real[PATH_LIMIT];
  (void)info;
  int failed = below(real, path);
  if (failed) return failed;
  return lstat(real, out) ? -errno : 0;
}

static int do_readdir(const char *path, void *buffer, fuse_fill_dir_t fill, off_t offset, struct fuse_file_info *info,
                      enum fuse_readdir_flags flags) {
  char real[PATH_LIMIT];
  (void)offset, (void)info, (void)flags;
  int failed = below(real, path);
  if (failed) return failed;
  DIR *dir = opendir(real);
  if (!dir) return -errno;
  for (struct dirent *entry; (entry = readdir(dir));) fill(buffer, entry->d_name, NULL, 0, 0);
  closedir(dir);
  return 0;
}

static int do_statfs(const char *path, struct statvfs *out) {
  (void)path;
  if (statvfs(backing, out)) return -errno;
  if (settings[FULL]) out->f_bavail = out->f_bfree = 0;
  return 0;
}

/* What changes the directory: one call on the real path, refused while the filesystem is read-only. */
#define CHANGE(name, parameters, call)           \
  static int do_##name parameters {              \
    char real[PATH_LIMIT];                       \
    int failed = below(real, path);              \
    if (failed) return failed;                   \
    if (settings[READ_ONLY]) return -EROFS;      \
    return (call) ? -errno : 0;                  \
  }
CHANGE(unlink, (const char *path), unlink(real))
CHANGE(rmdir, (const char *path), rmdir(real))
CHANGE(mkdir, (const char *path, mode_t mode), mkdir(real, mode))
CHANGE(chmod, (const char *path, mode_t mode, struct fuse_file_info *info), ((void)info, chmod(real, mode)))
CHANGE(truncate, (const char *path, off_t size, struct fuse_file_info *info), ((void)info, truncate(real, size)))
CHANGE(utimens, (const char *path, const struct timespec times[2], struct fuse_file_info *info),
       ((void)info, utimensat(AT_FDCWD, real, times, AT_SYMLINK_NOFOLLOW)))

static int two_paths(const char *path, const char *to, int (*call)(const char *, const char *)) {
  char real[PATH_LIMIT], real_to[PATH_LIMIT];
  int failed = below(real, path);
  if (!failed) failed = below(real_to, to);
  if (failed) return failed;
  if (settings[READ_ONLY]) return -EROFS;
  return call(real, real_to) ? -errno : 0;
}

static int do_rename(const char *path, const char *to, unsigned flags) {
  return flags ? -EINVAL : two_paths(path, to, rename);
}

static int do_link(const char *path, const char *to) { return two_paths(path, to, link); }

static int do_setxattr(const char *path, const char *name, const char *value, size_t size, int flags) {
  (void)path, (void)flags;
  char text[32] = "";
  if (strncmp(name, PREFIX, strlen(PREFIX)) || size >= sizeof text) return -ENOTSUP;
  int which = setting(name + strlen(PREFIX));
  if (which < 0) return -ENOTSUP;
  memcpy(text, value, size);
  pthread_mutex_lock(&lock);
  settings[which] = atol(text);
  pthread_cond_broadcast(&changed);
  pthread_mutex_unlock(&lock);
  return 0;
}

static int do_getxattr(const char *path, const char *name, char *out, size_t size) {
  (void)path;
  char text[96];
  if (strcmp(name, PREFIX "stats")) return -ENODATA;
  if (size == 0) return sizeof text;
  pthread_mutex_lock(&lock);
  int length = snprintf(text, sizeof text, "%ld %ld %ld", requests, bytes, most_in_flight);
  requests = bytes = most_in_flight = 0;
  pthread_mutex_unlock(&lock);
  if ((size_t)length > size) return -ERANGE;
  memcpy(out, text, length);
  return length;
}

static void *do_init(struct fuse_conn_info *connection, struct fuse_config *config) {
  connection->max_background = max_background;
  connection->congestion_threshold = max_background * 3 / 4;
  /* Pages stay cached from one open to the next, as they do on a disk. */
  config->kernel_cache = 1;
  config->use_ino = 1;
  config->attr_timeout = config->entry_timeout = 1.0;
  puts("ready");
  fflush(stdout);
  return NULL;
}

static const struct fuse_operations operations = {
    .init = do_init, .getattr = do_getattr, .readdir = do_readdir, .open = do_open, .create = do_create,
    .release = do_release, .read = do_read, .write = do_write, .fsync = do_fsync, .statfs = do_statfs,
    .unlink = do_unlink, .rmdir = do_rmdir, .mkdir = do_mkdir, .chmod = do_chmod, .truncate = do_truncate,
    .utimens = do_utimens, .rename = do_rename, .link = do_link, .setxattr = do_setxattr, .getxattr = do_getxattr};

int main(int count, char **values) {
  if (count < 3) return fprintf(stderr, "usage: latfuse BACKING MOUNTPOINT [NAME=NUMBER]...\n"), 2;
  backing = values[1];
  for (int i = 3; i < count; i++) {
    char *number = strchr(values[i], '=');
    if (!number) return fprintf(stderr, "latfuse: %s is not NAME=NUMBER\n", values[i]), 2;
    *number++ = '\0';
    int which = setting(values[i]);
    if (which >= 0)
      settings[which] = atol(number);
    else if (strcmp(values[i], "max_background") == 0)
      max_background = atol(number);
    else
      return fprintf(stderr, "latfuse: %s is not a setting\n", values[i]), 2;
  }
  char *arguments[] = {"latfuse", "-o", "allow_other,fsname=latfuse", NULL};
  struct fuse_args args = FUSE_ARGS_INIT(3, arguments);
  struct fuse *fuse = fuse_new(&args, &operations, sizeof operations, NULL);
  if (!fuse || fuse_mount(fuse, values[2])) return 1;
  struct fuse_loop_config *loop = fuse_loop_cfg_create();
  /* Every request sleeps in a thread of its own, so there must be more than can be in flight. */
  fuse_loop_cfg_set_max_threads(loop, 256);
  fuse_loop_cfg_set_idle_threads(loop, 256);
  int status = fuse_loop_mt(fuse, loop);
  fuse_unmount(fuse);
  return status ? 1 : 0;
}
