// Named barriers of some of a block's threads, of which some only come and go on.
#pragma once

namespace nxcore_emulator {

constexpr int BARRIERS = 16;
constexpr int TRIES = 1 << 20;  // after so many, what is waited for doesn't come
static int come[BARRIERS], times_met[BARRIERS];

// At a block's begin: what a block that failed left behind is no other block's.
inline void begin_barriers() {
  if (current == 0) memset(come, 0, sizeof come);
}

// A thread that waits lets all others go on until as many have come as are wanted.
inline void meet(int barrier, int wanted, bool waits) {
  const int met = times_met[barrier];
  if (++come[barrier] == wanted) {
    come[barrier] = 0;
    ++times_met[barrier];
    return;
  }
  for (int tries = 0; waits && times_met[barrier] == met; ++tries) {
    if (tries == TRIES) {
      report("thread %d: waits at barrier %d, where %d of %d have come", current, barrier, come[barrier], wanted);
      leave();
    }
    wait_for(SYNCTHREADS, 0);
  }
}

}  // namespace nxcore_emulator
