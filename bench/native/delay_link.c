/* A network link with a delay, between two network namespaces: for kernels without netem.
 *
 *   delay_link NAMESPACE NAMESPACE DELAY_US
 *
 * Makes a TUN device "delay0" in each named namespace and carries every packet to the other side DELAY_US later, in
 * order. Prints "ready" and runs until it is killed; the devices go with it. Addresses are the caller's to set.
 *
 * It shares the machine's cores with what is measured over it, so it is thrifty: checksums and segments are left to
 * each other by the two devices, and the buffer that was emptied last, still in the cache, is filled next.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/if_tun.h>
#include <linux/virtio_net.h>
#include <net/if.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#define SLOTS 4096
#define PACKET_BYTES (sizeof(struct virtio_net_hdr) + 65536)

struct packet {
  long due_ns;
  ssize_t size;
  char bytes[PACKET_BYTES];
};

/* One direction: one thread fills packets from a device and queues them, another empties them into the other device. */
struct direction {
  int from, to;
  unsigned long filled, emptied;
  int free_count;
  pthread_mutex_t lock;
  pthread_cond_t arrived;
  struct packet *queue[SLOTS], *free[SLOTS];
};

static struct direction directions[2];
static long delay_ns;

static long now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1000000000L + t.tv_nsec;
}

static void fail(const char *what) {
  perror(what);
  exit(1);
}

static int device_in(const char *name_space) {
  char path[256];
  snprintf(path, sizeof path, "/run/netns/%s", name_space);
  int fd = open(path, O_RDONLY);
  if (fd < 0 || setns(fd, CLONE_NEWNET)) fail(path);
  close(fd);
  struct ifreq request = {.ifr_flags = IFF_TUN | IFF_NO_PI | IFF_VNET_HDR};
  strcpy(request.ifr_name, "delay0");
  fd = open("/dev/net/tun", O_RDWR);
  if (fd < 0 || ioctl(fd, TUNSETIFF, &request)) fail("/dev/net/tun");
  if (ioctl(fd, TUNSETOFFLOAD, TUN_F_CSUM | TUN_F_TSO4 | TUN_F_TSO6)) fail("offloads of /dev/net/tun");
  return fd;
}

static void *fill(void *argument) {
  struct direction *way = argument;
  struct packet *packet = NULL;
  for (;;) {
    if (!packet) {
      pthread_mutex_lock(&way->lock);
      packet = way->free_count ? way->free[--way->free_count] : NULL;
      pthread_mutex_unlock(&way->lock);
    }
    if (!packet && !(packet = malloc(sizeof *packet))) fail("malloc");
    packet->size = read(way->from, packet->bytes, PACKET_BYTES);
    if (packet->size <= 0) continue;
    packet->due_ns = now_ns() + delay_ns;
    pthread_mutex_lock(&way->lock);
    /* A full queue drops the packet, as a router does. */
    if (way->filled - way->emptied < SLOTS) {
      way->queue[way->filled++ % SLOTS] = packet;
      packet = NULL;
      pthread_cond_signal(&way->arrived);
    }
    pthread_mutex_unlock(&way->lock);
  }
  return NULL;
}

static void *empty(void *argument) {
  struct direction *way = argument;
  for (;;) {
    pthread_mutex_lock(&way->lock);
    while (way->filled == way->emptied) pthread_cond_wait(&way->arrived, &way->lock);
    struct packet *packet = way->queue[way->emptied % SLOTS];
    pthread_mutex_unlock(&way->lock);
    struct timespec due = {packet->due_ns / 1000000000L, packet->due_ns % 1000000000L};
    if (packet->due_ns > now_ns()) clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &due, NULL);
    /* A device that is not up yet loses the packet, as a cable does. */
    ssize_t sent = write(way->to, packet->bytes, packet->size);
    (void)sent;
    pthread_mutex_lock(&way->lock);
    way->emptied++;
    if (way->free_count < SLOTS) way->free[way->free_count++] = packet;
    else free(packet);
    pthread_mutex_unlock(&way->lock);
  }
  return NULL;
}

int main(int count, char **values) {
  if (count != 4) return fprintf(stderr, "usage: delay_link NAMESPACE NAMESPACE DELAY_US\n"), 2;
  int devices[2] = {device_in(values[1]), device_in(values[2])};
  delay_ns = atol(values[3]) * 1000;
  for (int i = 0; i < 2; i++) {
    struct direction *way = &directions[i];
    way->from = devices[i];
    way->to = devices[!i];
    pthread_mutex_init(&way->lock, NULL);
    pthread_cond_init(&way->arrived, NULL);
    pthread_t thread;
    if (pthread_create(&thread, NULL, fill, way) || pthread_create(&thread, NULL, empty, way)) fail("thread");
  }
  puts("ready");
  fflush(stdout);
  pause();
  return 0;
}
