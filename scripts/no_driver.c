/* A CUDA driver without a GPU, for scripts/sass: it is asked about a Hopper GPU, and keeps the kernel that it is to load
   in the file that NO_DRIVER_KEEPS names. */

#include <elf.h>
#include <stdio.h>
#include <stdlib.h>

enum { MULTIPROCESSORS = 16, MAJOR = 75, MINOR = 76, SHARED_BYTES = 97 }; /* CUdevice_attribute */

int cuInit(unsigned flags) { return 0; }
int cuDriverGetVersion(int *version) { *version = 13000; return 0; }
int cuDeviceGetCount(int *count) { *count = 1; return 0; }
int cuDeviceGet(int *device, int index) { *device = 0; return 0; }
int cuCtxGetDevice(int *device) { *device = 0; return 0; }
int cuCtxGetCurrent(void **context) { *context = (void *)1; return 0; }
int cuFuncSetAttribute(void *function, int attribute, int value) { return 0; }
int cuGetErrorString(int error, const char **text) { *text = "no driver"; return 0; }
int cuModuleUnload(void *module) { return 0; }

int cuDeviceGetAttribute(int *value, int attribute, int device) {
    switch (attribute) {
    case MAJOR: *value = 9; break;
    case MINOR: *value = 0; break;
    case MULTIPROCESSORS: *value = 132; break;
    case SHARED_BYTES: *value = 232448; break;
    default: *value = 1;
    }
    return 0;
}

int cuModuleLoadData(void **module, const void *image) {
    const Elf64_Ehdr *header = image;
    const Elf64_Shdr *section = (const void *)((const char *)image + header->e_shoff);
    size_t end = header->e_shoff + (size_t)header->e_shentsize * header->e_shnum;
    for (int i = 0; i < header->e_shnum; i++) {
        size_t last = section[i].sh_offset + section[i].sh_size;
        if (section[i].sh_type != SHT_NOBITS && last > end) end = last;
    }
    size_t programs = header->e_phoff + (size_t)header->e_phentsize * header->e_phnum;
    if (programs > end) end = programs;
    FILE *file = fopen(getenv("NO_DRIVER_KEEPS"), "wb");
    if (!file) return 1;
    fwrite(image, 1, end, file);
    *module = (void *)2;
    return fclose(file) ? 1 : 0;
}

int cuModuleLoadDataEx(void **module, const void *image, unsigned count, void *options, void *values) {
    return cuModuleLoadData(module, image);
}

int cuModuleGetFunction(void **function, void *module, const char *name) { *function = (void *)3; return 0; }
