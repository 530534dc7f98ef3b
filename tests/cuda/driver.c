/* A stand-in for NVIDIA's driver (libcuda.so) on a machine without a GPU.
 *
 * It has the functions that CubeCL calls. Memory is the host's and copies are made, but a launch computes nothing. So
 * everything around the kernels runs as on a GPU: NVRTC compiles each one for the GPU that is asked for, memory is
 * counted and runs out, failures come back from where the driver reports them. Numbers, by design, come back wrong.
 *
 *   STAND_IN_ARCH          compute capability, 89 for 8.9; that is the default (an L4)
 *   STAND_IN_MEMORY        bytes of device memory; 24 GiB
 *   STAND_IN_FAIL_UPLOAD   bytes of the copy to the device from which on everything fails, as after an access to memory
 *                          that is not there
 *   STAND_IN_REPORT        file that gets one line at the end: modules, launches, most bytes at a time
 *
 * Build: cc -shared -fPIC -O2 -o libcuda.so tests/cuda/driver.c
 * Interface: NVIDIA, "CUDA Driver API", 13.0; numbers of results and attributes are those of its cuda.h.
 */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SUCCESS = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, INVALID_DEVICE = 101, ILLEGAL_ADDRESS = 700 };
enum { HEADER = 512 };

typedef uint64_t Pointer;
typedef struct {
    size_t src_x, src_y;
    int src_type;
    const void *src_host;
    Pointer src_device;
    void *src_array;
    size_t src_pitch;
    size_t dst_x, dst_y;
    int dst_type;
    void *dst_host;
    Pointer dst_device;
    void *dst_array;
    size_t dst_pitch;
    size_t width, height;
} Copy2D;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static size_t used, most;
static long modules, launches;
static int poisoned;

static long setting(const char *name, long otherwise) {
    const char *text = getenv(name);
    return text ? atol(text) : otherwise;
}

static size_t memory(void) { return (size_t)setting("STAND_IN_MEMORY", 24L << 30); }

static int state(void) { return poisoned ? ILLEGAL_ADDRESS : SUCCESS; }

static void report(void) {
    const char *path = getenv("STAND_IN_REPORT");
    FILE *file = path ? fopen(path, "w") : NULL;
    if (file) {
        fprintf(file, "{\"modules\": %ld, \"launches\": %ld, \"most_bytes\": %zu}\n", modules, launches, most);
        fclose(file);
    }
}

int cuInit(unsigned flags) {
    static int once;
    (void)flags;
    if (!once++) atexit(report);
    return SUCCESS;
}
int cuDriverGetVersion(int *version) { *version = 13000; return SUCCESS; }
int cuGetErrorName(int error, const char **name) {
    *name = error == OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY"
        : error == ILLEGAL_ADDRESS ? "CUDA_ERROR_ILLEGAL_ADDRESS" : "CUDA_ERROR_UNKNOWN";
    return SUCCESS;
}
int cuGetErrorString(int error, const char **text) {
    *text = error == OUT_OF_MEMORY ? "out of memory"
        : error == ILLEGAL_ADDRESS ? "an illegal memory access was encountered" : "unknown error";
    return SUCCESS;
}

int cuDeviceGetCount(int *count) { *count = 1; return SUCCESS; }
int cuDeviceGet(int *device, int ordinal) { *device = 0; return ordinal == 0 ? SUCCESS : INVALID_DEVICE; }
int cuDeviceGetName(char *name, int length, int device) {
    (void)device;
    snprintf(name, (size_t)length, "stand-in %ld", setting("STAND_IN_ARCH", 89));
    return SUCCESS;
}
int cuDeviceTotalMem_v2(size_t *bytes, int device) { (void)device; *bytes = memory(); return SUCCESS; }
int cuMemGetInfo_v2(size_t *left, size_t *total) {
    pthread_mutex_lock(&lock);
    *total = memory();
    *left = *total - used;
    pthread_mutex_unlock(&lock);
    return SUCCESS;
}
int cuDeviceGetAttribute(int *value, int attribute, int device) {
    long arch = setting("STAND_IN_ARCH", 89);
    (void)device;
    switch (attribute) {
        case 1: case 2: case 3: *value = 1024; break;                     /* threads a block, and along x and y */
        case 4: *value = 64; break;                                       /* along z */
        case 5: *value = 0x7fffffff; break;                               /* blocks along x */
        case 6: case 7: *value = 0xffff; break;                           /* along y and z */
        case 8: *value = 48 << 10; break;                                 /* shared bytes a block */
        case 10: *value = 32; break;                                      /* warp */
        case 16: *value = 58; break;                                      /* multiprocessors */
        case 75: *value = (int)(arch / 10); break;
        case 76: *value = (int)(arch % 10); break;
        case 97: *value = 99 << 10; break;                                /* shared bytes a block, by request */
        case 115: *value = 1; break;                                      /* memory pools */
        default: *value = 0;
    }
    return SUCCESS;
}

int cuDevicePrimaryCtxRetain(void **context, int device) { (void)device; *context = &lock; return SUCCESS; }
int cuDevicePrimaryCtxRelease_v2(int device) { (void)device; return SUCCESS; }
int cuCtxSetCurrent(void *context) { (void)context; return SUCCESS; }
int cuCtxGetCurrent(void **context) { *context = &lock; return SUCCESS; }
int cuCtxSynchronize(void) { return state(); }

int cuStreamCreate(void **stream, unsigned flags) { (void)flags; *stream = malloc(1); return SUCCESS; }
int cuStreamDestroy_v2(void *stream) { free(stream); return SUCCESS; }
int cuStreamSynchronize(void *stream) { (void)stream; return state(); }
int cuStreamWaitEvent(void *stream, void *event, unsigned flags) { (void)stream, (void)event, (void)flags; return state(); }
int cuEventCreate(void **event, unsigned flags) { (void)flags; *event = malloc(1); return SUCCESS; }
int cuEventDestroy_v2(void *event) { free(event); return SUCCESS; }
int cuEventRecord(void *event, void *stream) { (void)event, (void)stream; return state(); }
int cuEventSynchronize(void *event) { (void)event; return state(); }

int cuMemAlloc_v2(Pointer *pointer, size_t bytes) {
    int result = state();
    pthread_mutex_lock(&lock);
    if (result == SUCCESS && (bytes > memory() || used > memory() - bytes)) result = OUT_OF_MEMORY;
    if (result == SUCCESS) {
        size_t rounded = (bytes + 2 * HEADER - 1) / HEADER * HEADER;
        char *block = aligned_alloc(HEADER, rounded);
        if (block) {
            memset(block, 0, rounded);
            memcpy(block, &bytes, sizeof bytes);
            *pointer = (Pointer)(uintptr_t)(block + HEADER);
            used += bytes;
            most = used > most ? used : most;
        } else {
            result = OUT_OF_MEMORY;
        }
    }
    pthread_mutex_unlock(&lock);
    return result;
}
int cuMemFree_v2(Pointer pointer) {
    char *block = (char *)(uintptr_t)pointer - HEADER;
    size_t bytes;
    memcpy(&bytes, block, sizeof bytes);
    pthread_mutex_lock(&lock);
    used -= bytes;
    pthread_mutex_unlock(&lock);
    free(block);
    return state();
}
int cuMemAllocAsync(Pointer *pointer, size_t bytes, void *stream) { (void)stream; return cuMemAlloc_v2(pointer, bytes); }
int cuMemFreeAsync(Pointer pointer, void *stream) { (void)stream; return cuMemFree_v2(pointer); }
int cuMemAllocHost_v2(void **pointer, size_t bytes) {
    *pointer = aligned_alloc(HEADER, (bytes + HEADER - 1) / HEADER * HEADER);
    return *pointer ? state() : OUT_OF_MEMORY;
}
int cuMemFreeHost(void *pointer) { free(pointer); return SUCCESS; }

static int uploaded(size_t bytes) {
    if ((long)bytes == setting("STAND_IN_FAIL_UPLOAD", -1)) poisoned = 1;
    return state();
}

int cuMemcpyHtoDAsync_v2(Pointer to, const void *from, size_t bytes, void *stream) {
    (void)stream;
    memcpy((void *)(uintptr_t)to, from, bytes);
    return uploaded(bytes);
}
int cuMemcpyDtoHAsync_v2(void *to, Pointer from, size_t bytes, void *stream) {
    (void)stream;
    memcpy(to, (void *)(uintptr_t)from, bytes);
    return state();
}
int cuMemcpy2DAsync_v2(const Copy2D *copy, void *stream) {
    (void)stream;
    /* 1 is the host's memory, 2 the device's. */
    const char *from = copy->src_type == 1 ? copy->src_host : (const void *)(uintptr_t)copy->src_device;
    char *to = copy->dst_type == 1 ? copy->dst_host : (void *)(uintptr_t)copy->dst_device;
    for (size_t row = 0; row < copy->height; row++)
        memcpy(to + (copy->dst_y + row) * copy->dst_pitch + copy->dst_x,
               from + (copy->src_y + row) * copy->src_pitch + copy->src_x, copy->width);
    return copy->src_type == 1 ? uploaded(copy->width * copy->height) : state();
}

int cuModuleLoadData(void **module, const void *image) {
    /* What NVRTC made: a program in PTX, or machine code. */
    if (!strstr(image, ".entry") && memcmp(image, "\x7f" "ELF", 4) != 0) return INVALID_VALUE;
    __atomic_add_fetch(&modules, 1, __ATOMIC_SEQ_CST);
    *module = malloc(1);
    return state();
}
int cuModuleUnload(void *module) { free(module); return SUCCESS; }
int cuModuleGetFunction(void **function, void *module, const char *name) { (void)name; *function = module; return state(); }
int cuFuncSetAttribute(void *function, int attribute, int value) { (void)function, (void)attribute, (void)value; return SUCCESS; }
int cuFuncGetAttribute(int *value, int attribute, void *function) { (void)attribute, (void)function; *value = 0; return SUCCESS; }
int cuLaunchKernel(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                   unsigned shared, void *stream, void **arguments, void **extra) {
    (void)function, (void)shared, (void)stream, (void)arguments, (void)extra;
    if (!gx || !gy || !gz || (uint64_t)bx * by * bz > 1024 || !bx || !by || !bz) return INVALID_VALUE;
    __atomic_add_fetch(&launches, 1, __ATOMIC_SEQ_CST);
    return state();
}
int cuLaunchKernelEx(const void *configuration, void *function, void **arguments, void **extra) {
    (void)configuration;
    return cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, NULL, arguments, extra);
}
int cuDeviceGetUuid_v2(char uuid[16], int device) { (void)device; memset(uuid, 0xab, 16); return SUCCESS; }
int cuTensorMapEncodeTiled(void) { return SUCCESS; }
int cuTensorMapEncodeIm2col(void) { return SUCCESS; }

/* NVML, the library for watching GPUs, of the same memory. Linked to by its own name, this file is loaded once. */

typedef struct { unsigned version; unsigned long long total, reserved, free, used; } NvmlMemory;
typedef struct { unsigned pid; unsigned long long used; unsigned gpu_instance, compute_instance; } NvmlProcess;

int nvmlInit_v2(void) { return SUCCESS; }
int nvmlShutdown(void) { return SUCCESS; }
const char *nvmlErrorString(int result) { (void)result; return "stand-in"; }
int nvmlDeviceGetHandleByUUID(const char *uuid, void **device) {
    if (strcmp(uuid, "GPU-abababab-abab-abab-abab-abababababab") != 0) return INVALID_VALUE;
    *device = &lock;
    return SUCCESS;
}
int nvmlDeviceGetMemoryInfo_v2(void *device, NvmlMemory *info) {
    (void)device;
    pthread_mutex_lock(&lock);
    info->total = memory();
    info->reserved = 0;
    info->used = used;
    info->free = memory() - used;
    pthread_mutex_unlock(&lock);
    return SUCCESS;
}
int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned *count, NvmlProcess *processes) {
    unsigned room = *count;
    (void)device;
    *count = 1;
    if (!processes || room < 1) return 7; /* insufficient size */
    processes[0] = (NvmlProcess){.pid = (unsigned)getpid(), .used = used};
    return SUCCESS;
}
