/* What a process does to the files of one SQLite database, written down so that a power loss can be played later.
 *
 *   RECORDER_FILE=/dir/volume.db RECORDER_LOG=/elsewhere/log LD_PRELOAD=recorder.so program
 *
 * Every record is a header (see `struct header`) and, for a write, its bytes. A write is noted before it is made and a
 * sync twice, before and after: what was noted before a sync began is on the disk when it has ended.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

enum { MAX_FD = 4096, NAMES = 4, DIRECTORY = 1000000 };

struct header {
    char kind; /* C created, U unlinked, W written, T truncated, B sync begins, E sync has ended */
    char name; /* 0 the file, 1 its WAL, 2 its journal, 3 its sync log; of C and U */
    uint16_t zero;
    uint32_t file; /* which file it is: each that is created has a number of its own; DIRECTORY for the directory */
    uint64_t offset;
    uint64_t size;
} __attribute__((packed));

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static char base[4096], directory[4096];
static int log_fd = -1;
static uint32_t files, by_name[NAMES], by_fd[MAX_FD];
static uint64_t syncs;

__attribute__((constructor)) static void start(void) {
    const char *path = getenv("RECORDER_FILE"), *log = getenv("RECORDER_LOG");
    if (path == NULL || log == NULL || strlen(path) >= sizeof base) return;
    strcpy(base, path);
    strcpy(directory, path);
    *strrchr(directory, '/') = 0;
    log_fd = syscall(SYS_openat, AT_FDCWD, log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
}

static int name_of(const char *path) {
    size_t length = strlen(base);
    if (log_fd < 0 || path == NULL || strncmp(path, base, length) != 0) return -1;
    if (path[length] == 0) return 0;
    if (strcmp(path + length, "-wal") == 0) return 1;
    if (strcmp(path + length, "-journal") == 0) return 2;
    return strcmp(path + length, "-log") == 0 ? 3 : -1;
}

static void note(char kind, int name, uint32_t file, uint64_t offset, uint64_t size, const void *data) {
    struct header header = {kind, (char)name, 0, file, offset, size};
    struct iovec parts[2] = {{&header, sizeof header}, {(void *)data, data ? size : 0}};
    if (syscall(SYS_writev, log_fd, parts, 2) < 0) abort();
}

static uint32_t file_of(int fd) { return fd >= 0 && fd < MAX_FD ? by_fd[fd] : 0; }

static int opened(int fd, const char *path, int existed) {
    if (fd < 0 || fd >= MAX_FD || log_fd < 0) return fd;
    int name = name_of(path);
    pthread_mutex_lock(&mutex);
    by_fd[fd] = 0;
    if (name >= 0) {
        if (!existed || by_name[name] == 0) {
            by_name[name] = ++files;
            note('C', name, files, 0, 0, NULL);
        }
        by_fd[fd] = by_name[name];
    } else if (path != NULL && strcmp(path, directory) == 0) {
        by_fd[fd] = DIRECTORY;
    }
    pthread_mutex_unlock(&mutex);
    return fd;
}

#define REAL(name) static __typeof__(&name) real; if (!real) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)
#define MODE mode_t mode = 0; if (flags & (O_CREAT | O_TMPFILE)) { va_list rest; va_start(rest, flags); \
    mode = va_arg(rest, mode_t); va_end(rest); }

#define OPEN(name) int name(const char *path, int flags, ...) { REAL(name); MODE; \
    int existed = name_of(path) >= 0 && access(path, F_OK) == 0; return opened(real(path, flags, mode), path, existed); }
#define OPENAT(name) int name(int at, const char *path, int flags, ...) { REAL(name); MODE; \
    int existed = name_of(path) >= 0 && access(path, F_OK) == 0; \
    return opened(real(at, path, flags, mode), path, existed); }
OPEN(open)
OPEN(open64)
OPENAT(openat)
OPENAT(openat64)

int close(int fd) {
    REAL(close);
    if (fd >= 0 && fd < MAX_FD) by_fd[fd] = 0;
    return real(fd);
}

static void writing(int fd, const void *data, size_t size, off_t offset) {
    if (file_of(fd) == 0 || file_of(fd) == DIRECTORY) return;
    pthread_mutex_lock(&mutex);
    note('W', 0, file_of(fd), (uint64_t)offset, size, data);
    pthread_mutex_unlock(&mutex);
}

ssize_t write(int fd, const void *data, size_t size) {
    REAL(write);
    if (file_of(fd) != 0) writing(fd, data, size, lseek(fd, 0, SEEK_CUR));
    return real(fd, data, size);
}
#define PWRITE(name) ssize_t name(int fd, const void *data, size_t size, off_t offset) { REAL(name); \
    writing(fd, data, size, offset); return real(fd, data, size, offset); }
PWRITE(pwrite)
PWRITE(pwrite64)

#define TRUNCATE(name) int name(int fd, off_t size) { REAL(name); if (file_of(fd) != 0) { pthread_mutex_lock(&mutex); \
    note('T', 0, file_of(fd), (uint64_t)size, 0, NULL); pthread_mutex_unlock(&mutex); } return real(fd, size); }
TRUNCATE(ftruncate)
TRUNCATE(ftruncate64)

#define SYNC(name) int name(int fd) { REAL(name); uint32_t file = file_of(fd); if (file == 0) return real(fd); \
    pthread_mutex_lock(&mutex); uint64_t number = ++syncs; note('B', 0, file, number, 0, NULL); \
    pthread_mutex_unlock(&mutex); int result = real(fd); if (result == 0) { pthread_mutex_lock(&mutex); \
    note('E', 0, file, number, 0, NULL); pthread_mutex_unlock(&mutex); } return result; }
SYNC(fsync)
SYNC(fdatasync)

int unlink(const char *path) {
    REAL(unlink);
    int name = name_of(path);
    if (name >= 0) {
        pthread_mutex_lock(&mutex);
        note('U', name, by_name[name], 0, 0, NULL);
        by_name[name] = 0;
        pthread_mutex_unlock(&mutex);
    }
    return real(path);
}
