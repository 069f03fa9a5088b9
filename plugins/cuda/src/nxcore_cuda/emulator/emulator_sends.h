// What a thread sends to shared memory (cp.async): on the emulator it lies there once the thread has waited for it,
// and not before, so that a wait for too few is seen.
#pragma once

namespace nxcore_emulator {

struct Sent {
  void* to;
  unsigned char bytes[16];
  int size;
  long group;
};

struct Sends {
  Sent* first;
  int count, room;
  long closed;  // groups, of all blocks so far
};

static Sends sends[THREADS];

// Sends `size` bytes, or as many zeros.
inline void send(void* to, const void* from, int size, bool inside) {
  aligned(to, size);
  if (inside) aligned(from, size);
  Sends& own = sends[current];
  if (own.count == own.room) {
    own.room += own.room + 32;
    own.first = static_cast<Sent*>(__builtin_realloc(own.first, own.room * sizeof(Sent)));
  }
  Sent& sent = own.first[own.count++];
  sent.to = to;
  sent.size = size;
  sent.group = own.closed;
  memset(sent.bytes, 0, sizeof sent.bytes);
  if (inside) memcpy(sent.bytes, from, size);
}

inline void close_group() { ++sends[current].closed; }

// Waits for the groups before `group`.
inline void arrive_before(long group) {
  Sends& own = sends[current];
  int left = 0;
  for (int i = 0; i < own.count; ++i) {
    const Sent& sent = own.first[i];
    if (sent.group < group) {
      memcpy(sent.to, sent.bytes, sent.size);
    } else {
      own.first[left++] = sent;
    }
  }
  own.count = left;
}

// What a block that failed left behind is no other block's.
inline void forget_sends() { sends[current].count = 0; }

// A thread that ends has waited for all that it sent.
inline void end_sends() {
  if (sends[current].count) report("thread %d: ended before what it sent to shared memory had arrived", current);
  forget_sends();
}

inline void arrive_but(int count) { arrive_before(sends[current].closed - count); }
inline void arrive() { arrive_before(sends[current].closed + 1); }

}  // namespace nxcore_emulator
