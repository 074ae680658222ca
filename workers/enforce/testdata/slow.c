/*
 * A clock that goes slower. Preloaded into User-Mode Linux, a kernel that is a process, it divides the time that passes
 * by SLOW (1 where it is not set): the kernel's timers fire as much later, and a program inside finds its processor as
 * much faster. The host may then take most of its processors away, and system calls may cost several times what they
 * cost elsewhere, and times inside are still those of a machine of its own. Source of the idea: D. Gupta et al., To
 * Infinity and Beyond: Time-Warped Network Emulation, NSDI 2006.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static const long long second = 1000000000;
static long long slow = 1, began;

static long long nanoseconds(const struct timespec *t) {
	return t->tv_sec * second + t->tv_nsec;
}

static struct timespec timespec(long long nanoseconds) {
	return (struct timespec){nanoseconds / second, nanoseconds % second};
}

__attribute__((constructor)) static void begin(void) {
	const char *text = getenv("SLOW");
	if (text && atoll(text) > 1)
		slow = atoll(text);
	struct timespec now;
	syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &now);
	began = nanoseconds(&now);
}

int clock_gettime(clockid_t clock, struct timespec *now) {
	int error = syscall(SYS_clock_gettime, clock, now);
	if (!error && clock == CLOCK_MONOTONIC)
		*now = timespec(began + (nanoseconds(now) - began) / slow);
	return error;
}

int timer_settime(timer_t timer, int flags, const struct itimerspec *new, struct itimerspec *old) {
	static int (*next)(timer_t, int, const struct itimerspec *, struct itimerspec *);
	if (!next)
		next = dlsym(RTLD_NEXT, "timer_settime");
	struct itimerspec later = {
		timespec(nanoseconds(&new->it_interval) * slow), timespec(nanoseconds(&new->it_value) * slow)};
	return next(timer, flags, &later, old);
}
