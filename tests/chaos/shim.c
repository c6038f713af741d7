/* Counts the calls by which a sweep changes what is below its home, over all of its processes, and
 * has one of them fail. Preloaded; a path tells by its name, a descriptor by /proc/self/fd.
 *
 * SHIM_HOME     what is watched
 * SHIM_COUNTER  a file of two 64-bit numbers: calls so far, faults so far
 * SHIM_AT       the call at which it happens, from 1; 0: only counted
 * SHIM_FAULT    KILL (this process, at this call), EIO (this call), ENOSPC (from this call on),
 *               ENOSPC:M (M calls), or POWER (no process gets any further, from this call on)
 * SHIM_DIRTY    with POWER, a file to which is written what was written to (`+path`), synced (`-path`),
 *               renamed (`>old`, `=new`) and removed (`!path`)
 * SHIM_TRACE    a file to which the name of each call is written
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

#define CACHED 4096

static const char *home;
static size_t home_length;
static uint64_t at, most;
static int fault, trace = -1, dirty_log = -1;
static volatile uint64_t *counter;
/* 0: not known, 1: elsewhere, 2: below the home. Forgotten when a descriptor is opened or closed. */
static unsigned char known[CACHED], dirty[CACHED];

enum { NONE, KILL, EIO_ONCE, NO_SPACE, POWER };

/* Called again by a process that was forked with another environment. */
__attribute__((constructor)) void shim_begin(void) {
    const char *where = getenv("SHIM_COUNTER"), *which = getenv("SHIM_FAULT"), *when = getenv("SHIM_AT");
    const char *trace_path = getenv("SHIM_TRACE");
    home = getenv("SHIM_HOME");
    counter = NULL;
    memset(known, 0, sizeof known);
    memset(dirty, 0, sizeof dirty);
    if (!home || !where) return;
    home_length = strlen(home);
    at = when ? strtoull(when, NULL, 10) : 0;
    most = UINT64_MAX;
    if (which && !strncmp(which, "KILL", 4)) fault = KILL;
    if (which && !strncmp(which, "EIO", 3)) fault = EIO_ONCE;
    if (which && !strncmp(which, "ENOSPC", 6)) {
        fault = NO_SPACE;
        if (which[6] == ':') most = strtoull(which + 7, NULL, 10);
    }
    if (which && !strcmp(which, "POWER")) {
        const char *dirty_path = getenv("SHIM_DIRTY");
        fault = POWER;
        if (dirty_path)
            dirty_log = syscall(SYS_openat, AT_FDCWD, dirty_path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
    }
    int file = syscall(SYS_openat, AT_FDCWD, where, O_RDWR | O_CLOEXEC, 0);
    if (file < 0) return;
    void *place = mmap(NULL, 16, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    syscall(SYS_close, file);
    if (place != MAP_FAILED) counter = place;
    if (trace_path) trace = syscall(SYS_openat, AT_FDCWD, trace_path, O_WRONLY | O_APPEND | O_CLOEXEC, 0);
}

static int below(const char *path) {
    return !strncmp(path, home, home_length) && (path[home_length] == '/' || !path[home_length]);
}

static int path_is_ours(int directory, const char *path) {
    char whole[8192];
    if (!counter || !path) return 0;
    if (path[0] == '/') return below(path);
    if (directory == AT_FDCWD) {
        if (!getcwd(whole, 4096)) return 0;
    } else {
        char link[64];
        snprintf(link, sizeof link, "/proc/self/fd/%d", directory);
        ssize_t length = readlink(link, whole, 4096);
        if (length < 0) return 0;
        whole[length] = 0;
    }
    size_t length = strlen(whole);
    snprintf(whole + length, sizeof whole - length, "/%s", path);
    return below(whole);
}

static int descriptor_is_ours(int descriptor) {
    if (!counter || descriptor < 0) return 0;
    if (descriptor < CACHED && known[descriptor]) return known[descriptor] == 2;
    char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0) return 0;
    path[length] = 0;
    int ours = below(path);
    if (descriptor < CACHED) known[descriptor] = ours ? 2 : 1;
    return ours;
}

static void forget(int descriptor) {
    if (descriptor >= 0 && descriptor < CACHED) known[descriptor] = dirty[descriptor] = 0;
}

static void note(char sign, const char *path) {
    char line[8400];
    if (dirty_log < 0) return;
    int length = snprintf(line, sizeof line, "%c%s\n", sign, path);
    syscall(SYS_write, dirty_log, line, length);
}

static void note_descriptor(char sign, int descriptor) {
    char link[64], path[4096];
    if (dirty_log < 0 || descriptor >= CACHED || dirty[descriptor] == (sign == '+')) return;
    dirty[descriptor] = sign == '+';
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0) return;
    path[length] = 0;
    note(sign, path);
}

static void note_path(char sign, int directory, const char *path) {
    char whole[8192] = "";
    if (dirty_log < 0) return;
    if (path[0] != '/' && directory == AT_FDCWD && getcwd(whole, 4096)) strcat(whole, "/");
    if (strlen(whole) + strlen(path) < sizeof whole) strcat(whole, path);
    note(sign, whole);
}

static int known_as_ours(int descriptor) {
    return counter && descriptor >= 0 && descriptor < CACHED && known[descriptor] == 2;
}

/* Counts a call; returns the error it is to end with, or 0. */
static int happens(const char *name) {
    while (fault == POWER && counter[1]) syscall(SYS_pause);
    uint64_t number = __sync_add_and_fetch(&counter[0], 1);
    if (trace >= 0) {
        char line[128];
        int length = snprintf(line, sizeof line, "%llu %d %s\n", (unsigned long long)number, getpid(), name);
        syscall(SYS_write, trace, line, length);
    }
    if (!at || number < at) return 0;
    if (fault == NO_SPACE && number - at < most) {
        /* What frees space, or changes none, goes on. */
        if (!strcmp(name, "unlink") || !strcmp(name, "fsync") || !strcmp(name, "ftruncate")) return 0;
        __sync_add_and_fetch(&counter[1], 1);
        return ENOSPC;
    }
    if (number != at) return 0;
    __sync_add_and_fetch(&counter[1], 1);
    if (fault == KILL) {
        syscall(SYS_kill, getpid(), SIGKILL);
        for (;;) syscall(SYS_pause);
    }
    while (fault == POWER) syscall(SYS_pause);
    return fault == EIO_ONCE ? EIO : 0;
}

#define REAL(name) static __typeof__(name) *real; if (!real) real = dlsym(RTLD_NEXT, #name)
#define MEET(ours, name) \
    if (ours) { int error = happens(name); if (error) { errno = error; return -1; } }

ssize_t write(int fd, const void *data, size_t size) {
    REAL(write);
    MEET(descriptor_is_ours(fd), "write")
    if (known_as_ours(fd)) note_descriptor('+', fd);
    return real(fd, data, size);
}
ssize_t pwrite64(int fd, const void *data, size_t size, off64_t offset) {
    REAL(pwrite64);
    MEET(descriptor_is_ours(fd), "pwrite")
    if (known_as_ours(fd)) note_descriptor('+', fd);
    return real(fd, data, size, offset);
}
ssize_t pwrite(int fd, const void *data, size_t size, off_t offset) {
    REAL(pwrite);
    MEET(descriptor_is_ours(fd), "pwrite")
    if (known_as_ours(fd)) note_descriptor('+', fd);
    return real(fd, data, size, offset);
}
ssize_t writev(int fd, const struct iovec *parts, int count) {
    REAL(writev);
    MEET(descriptor_is_ours(fd), "write")
    if (known_as_ours(fd)) note_descriptor('+', fd);
    return real(fd, parts, count);
}
int fsync(int fd) {
    REAL(fsync);
    MEET(descriptor_is_ours(fd), "fsync")
    if (known_as_ours(fd)) note_descriptor('-', fd);
    return real(fd);
}
int fdatasync(int fd) {
    REAL(fdatasync);
    MEET(descriptor_is_ours(fd), "fsync")
    if (known_as_ours(fd)) note_descriptor('-', fd);
    return real(fd);
}
int ftruncate(int fd, off_t size) {
    REAL(ftruncate);
    MEET(descriptor_is_ours(fd), "ftruncate")
    return real(fd, size);
}
int ftruncate64(int fd, off64_t size) {
    REAL(ftruncate64);
    MEET(descriptor_is_ours(fd), "ftruncate")
    return real(fd, size);
}
int rename(const char *old, const char *new) {
    REAL(rename);
    MEET(path_is_ours(AT_FDCWD, new), "rename")
    if (path_is_ours(AT_FDCWD, new)) note_path('>', AT_FDCWD, old), note_path('=', AT_FDCWD, new);
    return real(old, new);
}
int renameat(int from, const char *old, int to, const char *new) {
    REAL(renameat);
    MEET(path_is_ours(to, new), "rename")
    return real(from, old, to, new);
}
int unlink(const char *path) {
    REAL(unlink);
    MEET(path_is_ours(AT_FDCWD, path), "unlink")
    if (path_is_ours(AT_FDCWD, path)) note_path('!', AT_FDCWD, path);
    return real(path);
}
int unlinkat(int fd, const char *path, int flags) {
    REAL(unlinkat);
    MEET(path_is_ours(fd, path), "unlink")
    return real(fd, path, flags);
}
int mkdir(const char *path, mode_t mode) {
    REAL(mkdir);
    MEET(path_is_ours(AT_FDCWD, path), "mkdir")
    return real(path, mode);
}
int link(const char *old, const char *new) {
    REAL(link);
    MEET(path_is_ours(AT_FDCWD, new), "link")
    return real(old, new);
}
int symlink(const char *old, const char *new) {
    REAL(symlink);
    MEET(path_is_ours(AT_FDCWD, new), "symlink")
    return real(old, new);
}

/* Opening without making is no change, and making a file that is there is one call like any other. */
#define OPEN(name, ...) \
    REAL(name); \
    mode_t mode = 0; \
    if (flags & (O_CREAT | O_TMPFILE)) { va_list rest; va_start(rest, flags); mode = va_arg(rest, int); va_end(rest); }
#define OPENED(result) { int opened = (result); forget(opened); return opened; }
int open(const char *path, int flags, ...) {
    OPEN(open)
    MEET((flags & O_CREAT) && path_is_ours(AT_FDCWD, path), "open")
    OPENED(real(path, flags, mode))
}
int open64(const char *path, int flags, ...) {
    OPEN(open64)
    MEET((flags & O_CREAT) && path_is_ours(AT_FDCWD, path), "open")
    OPENED(real(path, flags, mode))
}
int openat(int directory, const char *path, int flags, ...) {
    OPEN(openat)
    MEET((flags & O_CREAT) && path_is_ours(directory, path), "open")
    OPENED(real(directory, path, flags, mode))
}
int openat64(int directory, const char *path, int flags, ...) {
    OPEN(openat64)
    MEET((flags & O_CREAT) && path_is_ours(directory, path), "open")
    OPENED(real(directory, path, flags, mode))
}
FILE *fopen(const char *path, const char *how) {
    REAL(fopen);
    if (strpbrk(how, "wa") && path_is_ours(AT_FDCWD, path)) {
        int error = happens("open");
        if (error) { errno = error; return NULL; }
    }
    FILE *file = real(path, how);
    if (file) forget(fileno(file));
    return file;
}
int close(int fd) {
    REAL(close);
    forget(fd);
    return real(fd);
}
int dup2(int from, int to) {
    REAL(dup2);
    forget(to);
    return real(from, to);
}
int dup3(int from, int to, int flags) {
    REAL(dup3);
    forget(to);
    return real(from, to, flags);
}
