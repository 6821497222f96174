/* Preloaded into all processes of one host of a test: its clock is wrong, its disk is full or stands still, as a file that they map says.
 *
 * $FAULTY_HOST names the file: three int64, seconds that are added to the time of day, whether writing to regular files fails, and
 * whether it waits, as where a server of shared storage is started again.
 * Only what is read of CLOCK_REALTIME is wrong. What waits until a moment of it (pthread_cond_timedwait) asks the kernel, whose clock is
 * right: with a clock that is ahead, only its timeouts come later.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

static volatile int64_t *faults;

__attribute__((constructor)) static void look(void)
{
    const char *path = getenv("FAULTY_HOST");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0)
        return;
    void *found = mmap(NULL, 3 * sizeof(int64_t), PROT_READ, MAP_SHARED, file, 0);
    if (found != MAP_FAILED)
        faults = found;
    close(file);
}

static int64_t ahead(void)
{
    return faults ? faults[0] : 0;
}

int clock_gettime(clockid_t clock, struct timespec *now)
{
    int failed = (int)syscall(SYS_clock_gettime, clock, now);
    if (!failed && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
        now->tv_sec += ahead();
    return failed;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) /* `now` is there: libc declares it so */
{
    int failed = (int)syscall(SYS_gettimeofday, now, zone);
    if (!failed)
        now->tv_sec += ahead();
    return failed;
}

time_t time(time_t *found)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (found)
        *found = now.tv_sec;
    return now.tv_sec;
}

static int full(int file)
{
    struct stat about;
    if (!faults || !(faults[1] || faults[2]) || fstat(file, &about) || !S_ISREG(about.st_mode))
        return 0;
    while (faults[2])
        usleep(50000);
    if (!faults[1])
        return 0;
    errno = ENOSPC;
    return 1;
}

ssize_t write(int file, const void *content, size_t count)
{
    return full(file) ? -1 : syscall(SYS_write, file, content, count);
}

ssize_t writev(int file, const struct iovec *parts, int count)
{
    return full(file) ? -1 : syscall(SYS_writev, file, parts, count);
}
