/*
 * A libnvidia-ml.so.1 for machines without a GPU; nvidia-ml-py reads it like the real one.
 *
 * FAKE_NVML_DEVICES  name,major.minor,MiB per device, devices separated by '|' (empty: no device)
 * FAKE_NVML_DRIVER   driver version                      (550.127.05)
 * FAKE_NVML_CUDA     CUDA version as NVML counts it      (12040; 0: the call is not supported)
 * FAKE_NVML_INIT     return code of nvmlInit             (0)
 * FAKE_NVML_LOST     index of a device that has fallen off the bus
 * FAKE_NVML_MIG      MIG instances per device            (-1: the GPU knows no MIG, 0: split, none made)
 * FAKE_NVML_USED     MiB in use on each device           (0)
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { OK = 0, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7, GPU_IS_LOST = 15 };
enum { MAX_DEVICES = 8, MAX_INSTANCES = 7 };

struct device {
    char name[96];
    int major, minor, index, instance; /* instance: -1 for the whole GPU */
    unsigned long long mebibytes;
};

struct memory {
    unsigned long long total, free, used;
};

static struct device gpus[MAX_DEVICES];
static struct device instances[MAX_DEVICES][MAX_INSTANCES];
static unsigned int gpu_count;

static int number(const char *variable, int fallback)
{
    const char *text = getenv(variable);
    return text && *text ? atoi(text) : fallback;
}

static int put(char *out, unsigned int size, const char *text)
{
    if (strlen(text) + 1 > size)
        return INSUFFICIENT_SIZE;
    strcpy(out, text);
    return OK;
}

static void read_devices(void)
{
    const char *text = getenv("FAKE_NVML_DEVICES");
    gpu_count = 0;
    while (text && *text && gpu_count < MAX_DEVICES) {
        struct device *gpu = &gpus[gpu_count];
        if (sscanf(text, "%95[^,|],%d.%d,%llu", gpu->name, &gpu->major, &gpu->minor, &gpu->mebibytes) != 4)
            break;
        gpu->index = (int)gpu_count++;
        gpu->instance = -1;
        text = strchr(text, '|');
        text = text ? text + 1 : NULL;
    }
}

int nvmlInitWithFlags(unsigned int flags)
{
    (void)flags;
    read_devices();
    return number("FAKE_NVML_INIT", OK);
}

int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
int nvmlShutdown(void) { return OK; }
const char *nvmlErrorString(int code) { return code ? "an error" : "no error"; }

int nvmlSystemGetDriverVersion(char *out, unsigned int size)
{
    const char *version = getenv("FAKE_NVML_DRIVER");
    return put(out, size, version ? version : "550.127.05");
}

int nvmlSystemGetCudaDriverVersion_v2(int *out)
{
    *out = number("FAKE_NVML_CUDA", 12040);
    return *out ? OK : NOT_SUPPORTED;
}

int nvmlDeviceGetCount_v2(unsigned int *out)
{
    *out = gpu_count;
    return OK;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned int index, struct device **out)
{
    if (index >= gpu_count)
        return INVALID_ARGUMENT;
    if ((int)index == number("FAKE_NVML_LOST", -1))
        return GPU_IS_LOST;
    *out = &gpus[index];
    return OK;
}

int nvmlDeviceGetName(struct device *device, char *out, unsigned int size) { return put(out, size, device->name); }

int nvmlDeviceGetUUID(struct device *device, char *out, unsigned int size)
{
    char uuid[64];
    if (device->instance < 0)
        snprintf(uuid, sizeof uuid, "GPU-%08x-0000-4000-8000-000000000000", (unsigned int)device->index);
    else
        snprintf(uuid, sizeof uuid, "MIG-%08x-%04x-5000-8000-000000000000", (unsigned int)device->index,
                 (unsigned int)device->instance);
    return put(out, size, uuid);
}

int nvmlDeviceGetCudaComputeCapability(struct device *device, int *major, int *minor)
{
    *major = device->major;
    *minor = device->minor;
    return OK;
}

int nvmlDeviceGetMemoryInfo(struct device *device, struct memory *out)
{
    if (!device->mebibytes)
        return NOT_SUPPORTED;
    out->total = device->mebibytes << 20;
    out->used = (unsigned long long)number("FAKE_NVML_USED", 0) << 20;
    out->free = out->total - out->used;
    return OK;
}

int nvmlDeviceGetMigMode(struct device *device, unsigned int *current, unsigned int *pending)
{
    (void)device;
    if (number("FAKE_NVML_MIG", -1) < 0)
        return NOT_SUPPORTED;
    *current = *pending = 1;
    return OK;
}

int nvmlDeviceGetMaxMigDeviceCount(struct device *device, unsigned int *out)
{
    (void)device;
    *out = MAX_INSTANCES;
    return OK;
}

int nvmlDeviceGetMigDeviceHandleByIndex(struct device *device, unsigned int index, struct device **out)
{
    if ((int)index >= number("FAKE_NVML_MIG", 0) || index >= MAX_INSTANCES)
        return NOT_FOUND;
    struct device *part = &instances[device->index][index];
    *part = *device;
    part->instance = (int)index;
    part->mebibytes = device->mebibytes / MAX_INSTANCES;
    *out = part;
    return OK;
}
