/* How a thread that waits for a stream is woken by the process that sends there: a model of
 * shm/layout.hpp (NapWords), ShmEndpoint::nap() and wake_readers(), Sleeper::nap() and Socket::wait(),
 * for spin(1). Memory is sequentially consistent here, as the code's atomics are where it matters.
 *
 * READERS readers, each of a stream of its own, share one nap word, as streams do whose numbers have
 * the same remainder. SENDERS threads of the sending process post one message to each stream. With
 * POLLER, another thread of the reading process polls for everybody, if it likes; with CLOSER, one
 * closes the first stream.
 *
 * WRONG_ORDER is how it was first written: a ring between the two steps woke nobody. With LATE_WORD
 * a reader says what it sleeps on after its look: the thread that has to tell it of an arrival would
 * leave that to a ring that was before.
 *
 * A reader reads until it has all, or its stream is closed. One that sleeps for ever is found as a
 * state without a successor in which a process has not ended ("invalid end state").
 */
#ifndef READERS
#define READERS 1
#endif
#ifndef SENDERS
#define SENDERS 2
#endif

/* Written by the sending process. */
byte posted;                         /* descriptors in the ring */
byte receiver[READERS * SENDERS];    /* of each: the stream */
byte rung;
byte rung_for;                       /* rung_naps_, in memory of its own */
/* Written by the reading process. */
byte slept;
byte polled;                         /* descriptors taken out of the ring */
bool locked;                         /* the node's receive lock */
byte arrived[READERS];
bool closed[READERS];
bool watched[READERS];
bool naps[READERS];                  /* Waiter */
byte nap_value[READERS];
bool awake[READERS] = true;          /* Wakeable::word_ */
/* The kernel's: who sleeps. */
bool asleep[READERS];

/* Stream::signal() and Wakeable::wake(). */
inline wake(which) {
  if
  :: watched[which] ->
    d_step {
      was = awake[which];
      awake[which] = true
    }
    if
    :: !was -> asleep[which] = false /* FUTEX_WAKE */
    :: else
    fi;
    was = false
  :: else
  fi
}

/* Waiter::on_event(): who is rung for anyway is left to its peer. */
inline tell(which) {
  if
  :: naps[which] ->
    number = nap_value[which];
    if
    :: rung != number
    :: else -> wake(which)
    fi;
    number = 0
  :: else -> wake(which)
  fi
}

/* What is found is in the queue before its stream's watchers are told. */
inline drain() {
  atomic { !locked -> locked = true }
  do
  :: polled < posted ->
    d_step {
      found = receiver[polled];
      polled++
    }
    arrived[found]++;
    tell(found);
    found = 0
  :: else -> break
  od;
  locked = false
}

inline say_what_it_sleeps_on(value) {
  nap_value[me] = value;
  naps[me] = true
}

proctype Reader(byte me) {
  byte value, found, number;
  bool was;
  watched[me] = true;
  do
  :: arrived[me] == SENDERS || closed[me] -> break
  :: else ->
    awake[me] = false;
#ifdef WRONG_ORDER
    slept++;
    value = rung;
#else
    value = rung; /* first: a ring for this sleep must be seen to be one */
    slept++;
#endif
#ifndef LATE_WORD
    say_what_it_sleeps_on(value);
#endif
    /* The look. */
    if
    :: polled < posted -> drain()
    :: else
    fi;
    if
    :: arrived[me] == SENDERS || closed[me]
    :: else ->
#ifdef LATE_WORD
      say_what_it_sleeps_on(value);
#endif
      d_step { /* futex_waitv(2) compares both words as it puts the thread to sleep */
        if
        :: !awake[me] && rung == value -> asleep[me] = true
        :: else
        fi
      }
      !asleep[me]
    fi;
    awake[me] = true;
    value = 0;
    if /* It looks for itself, unless another thread polls: then it looks before it sleeps again. */
    :: drain()
    :: locked
    fi
  od;
  watched[me] = false
}

proctype Sender() {
  byte to, value;
  do
  :: to < READERS ->
    d_step { /* under the post lock */
      receiver[posted] = to;
      posted++
    }
    value = slept;
    if
    :: value != rung_for ->
      rung++;
      d_step { /* FUTEX_WAKE of all */
        asleep[0] = false;
        asleep[READERS - 1] = false
      }
      rung_for = value
    :: else
    fi;
    value = 0;
    to++
  :: else -> break
  od
}

proctype Poller() {
  byte found, number;
  bool was;
  if
  :: drain()
  :: true
  fi
}

proctype Closer() {
  bool was;
  closed[0] = true;
  wake(0)
}

init {
  byte i;
  atomic {
    for (i : 0 .. READERS - 1) {
      run Reader(i)
    }
    for (i : 1 .. SENDERS) {
      run Sender()
    }
#ifdef POLLER
    run Poller();
#endif
#ifdef CLOSER
    run Closer();
#endif
    skip
  }
}
