// Rare: counts of calls that no plan is found for. Torch serves the first ones; see nxcore.call.rare.
#pragma once
#include <array>
#include <unordered_set>

#include "table.h"

namespace nxcore {

// Once the Python path has checked one call of a family, a call of other sizes is torch's without running Python,
// unless such sizes are on record. Used with the interpreter's lock held.
class Rare {
 public:
  // Counts a call, and returns whether torch serves it.
  bool serves(const Asked& asked);
  // How often torch served such a call, with any numbers. With `shapes`, dicts whose keys are the shapes on record, it
  // is counted now, and its family, of these numbers, may wait from now on, if nothing unusual is in force.
  size_t met(const Asked& asked, Ref shapes);
  void clear() { counts_.clear(), families_.clear(); }
  PyObject* shapes() const { return shapes_.ptr(); }

 private:
  // A call's hash with its count in the low bits. Of eight in one line of the cache, the first that came makes room.
  uint64_t& count(uint64_t call);
  struct alignas(64) Set : std::array<uint64_t, 8> {};
  std::vector<Set> counts_;
  std::unordered_set<uint64_t> families_;
  Ref shapes_;
};

}  // namespace nxcore
