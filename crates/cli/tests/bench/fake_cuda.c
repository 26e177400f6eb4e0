/* A fake CUDA driver for tests. It runs no kernels, but counts kernel launches and graph nodes.
 * -DCOUNT=N sets the number of GPUs. With -DLOSES, each graph launch loses one kernel. With -DOLD,
 * the driver is older than cuGraphUpload. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef int result;
static int capturing, nodes;
static uint32_t *counted;

result cuInit(unsigned flags) { (void)flags; return COUNT ? 0 : 100; }
result cuGetErrorName(result error, const char **name) {
    *name = error == 100 ? "CUDA_ERROR_NO_DEVICE" : "CUDA_ERROR_UNKNOWN";
    return 0;
}
result cuGetErrorString(result error, const char **text) {
    *text = error == 100 ? "no CUDA-capable device is detected" : "unknown error";
    return 0;
}
result cuDeviceGetCount(int *count) { *count = COUNT; return 0; }
result cuDeviceGet(int *device, int index) { *device = index; return 0; }
result cuDeviceGetName(char *name, int size, int device) {
    (void)device;
    strncpy(name, "Fake GPU", (size_t)size);
    return 0;
}
result cuDeviceGetAttribute(int *value, int attribute, int device) {
    (void)device;
    *value = attribute == 75 ? 9 : attribute == 76 ? 0 : 1;
    return 0;
}
result cuDevicePrimaryCtxRetain(void **context, int device) { (void)device; *context = &capturing; return 0; }
result cuDevicePrimaryCtxRelease_v2(int device) { (void)device; return 0; }
result cuCtxGetCurrent(void **context) { *context = &capturing; return 0; }
result cuCtxSetCurrent(void *context) { (void)context; return 0; }
result cuCtxSynchronize(void) { return 0; }
result cuStreamCreate(void **stream, unsigned flags) { (void)flags; *stream = &nodes; return 0; }
result cuStreamDestroy_v2(void *stream) { (void)stream; return 0; }
result cuStreamSynchronize(void *stream) { (void)stream; return 0; }
result cuModuleLoadData(void **module, const char *image) {
    *module = &nodes;
    return strstr(image, ".entry tick(") ? 0 : 218;
}
result cuModuleGetFunction(void **function, void *module, const char *name) {
    *function = module;
    return strcmp(name, "tick") ? 500 : 0;
}
result cuModuleUnload(void *module) { (void)module; return 0; }
result cuMemAllocAsync(uint64_t *address, size_t size, void *stream) {
    (void)stream;
    *address = (uint64_t)(uintptr_t)calloc(1, size);
    return 0;
}
result cuMemFreeAsync(uint64_t address, void *stream) { (void)stream; free((void *)(uintptr_t)address); return 0; }
result cuMemsetD8Async(uint64_t address, unsigned char value, size_t size, void *stream) {
    (void)stream;
    memset((void *)(uintptr_t)address, value, size);
    return 0;
}
result cuMemcpyHtoDAsync_v2(uint64_t to, const void *from, size_t size, void *stream) {
    (void)stream;
    memcpy((void *)(uintptr_t)to, from, size);
    return 0;
}
result cuMemcpyDtoHAsync_v2(void *to, uint64_t from, size_t size, void *stream) {
    (void)stream;
    memcpy(to, (void *)(uintptr_t)from, size);
    return 0;
}
result cuLaunchKernel(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                      unsigned shared, void *stream, void **arguments, void **extra) {
    (void)function, (void)shared, (void)stream, (void)extra;
    if (gx * gy * gz * bx * by * bz != 1) return 1;
    counted = *(uint32_t **)arguments[0];
    if (capturing) nodes++; else ++*counted;
    return 0;
}
result cuStreamBeginCapture_v2(void *stream, int mode) { (void)stream, (void)mode; capturing = 1; return 0; }
result cuStreamEndCapture(void *stream, void **graph) { (void)stream; capturing = 0; *graph = &nodes; return 0; }
result cuGraphInstantiateWithFlags(void **ready, void *graph, unsigned long long flags) {
    (void)flags;
    *ready = graph;
    return 0;
}
#ifndef OLD
result cuGraphUpload(void *ready, void *stream) { (void)ready, (void)stream; return 0; }
#endif
result cuGraphLaunch(void *ready, void *stream) {
    (void)ready, (void)stream;
    *counted += (uint32_t)nodes;
#ifdef LOSES
    --*counted;
#endif
    return 0;
}
result cuGraphExecDestroy(void *ready) { (void)ready; return 0; }
result cuGraphDestroy(void *graph) { (void)graph; return 0; }
