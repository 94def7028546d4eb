#ifndef SIDESTEP_H
#define SIDESTEP_H
/*
 * What the library exports under names of its own. Nothing needs them: a program may look them up
 * (weak references, dlsym) to learn what carries a stream. Thread-safe.
 */
#ifdef __cplusplus
extern "C" {
#endif

/* Bits of sidestep_carriers(). */
#define SIDESTEP_SENDS_BY_ENGINE 1    /* what is sent from now on goes over the engine */
#define SIDESTEP_RECEIVES_BY_ENGINE 2 /* what was received last came over the engine */

/* What carries the two directions of the TCP stream `fd`; -1 with errno ENOENT if Sidestep does not
 * track it. A stream whose program has neither read nor written leaves the kernel when it does, or
 * when this is asked. */
int sidestep_carriers(int fd);

/* Moves both directions of the TCP stream `fd` to the kernel; they come up again by themselves.
 * For tests: a program cannot tell. 0, or -1 with errno ENOENT if neither can be on the engine. */
int sidestep_switch(int fd);

#ifdef __cplusplus
}
#endif

#endif
