// Rare: counts of calls that no plan is found for. Torch serves the first ones; see nxcore.call.rare.
#pragma once
#include <array>
#include <unordered_set>

#include "table.h"

namespace nxcore {

constexpr uint64_t RARE = 3, COUNT = 0xFF;  // as in nxcore.call.rare; the bits of a count

// Once the Python path has checked one call of a family, a call of other sizes is torch's without running Python,
// unless such sizes are on record. Used with the interpreter's lock held.
class Rare {
 public:
  // Counts a call, and returns whether torch serves it.
  bool serves(const Asked& asked) {
    uint64_t call, family;
    if (families_.empty() || !apart(asked, call, family) || !families_.count(family)) return false;
    uint64_t& met = count(call);
    if ((met & COUNT) >= RARE) return false;
    if (!(met & COUNT))
      for (PyObject* table : items_of(shapes_.ptr()))
        if (PyDict_GET_SIZE(table) && PyDict_Contains(table, shapes_of(asked).ptr()))
          return met |= RARE, false;  // Python looks closer
    return ++met;
  }

  // How often torch served such a call, with any numbers. With `shapes`, dicts whose keys are the shapes on record, it
  // is counted now, and its family, of these numbers, may wait from now on, if nothing unusual is in force.
  size_t met(const Asked& asked, Ref shapes) {
    uint64_t call, family;
    if (!apart(asked, call, family)) return 0;
    uint64_t& met = count(call);
    if (!shapes || (met & COUNT) >= RARE) return met & COUNT;
    if (families_.size() >= CAPACITY) families_.clear();
    families_.insert(family), shapes_ = std::move(shapes);
    return ++met & COUNT;
  }

  void clear() { counts_.clear(), families_.clear(); }
  PyObject* shapes() const { return shapes_.ptr(); }

 private:
  // A call's hash with its count in the low bits. Of eight in one line of the cache, the first that came makes room.
  uint64_t& count(uint64_t call) {
    counts_.resize(CAPACITY / 8);
    Set& set = counts_[call % counts_.size()];
    for (uint64_t& one : set)
      if ((one ^ call) <= COUNT) return one;
    for (size_t i = set.size() - 1; i > 0; --i) set[i] = set[i - 1];
    return set[0] = call & ~COUNT;
  }

  // What a call is counted by, and its family. Returns false where it may not wait.
  static bool apart(const Asked& asked, uint64_t& call, uint64_t& family) {
    call = asked.now.grad | asked.now.deterministic << 1, family = 0;
    if (!asked.now.ordinary() || !asked.mix_all(Apart::families, call, family)) return false;
    mix(call, family), mix(asked.hash, call);
    return true;
  }

  // The shapes of a call's tensors, as Recorded keeps them.
  static Ref shapes_of(const Asked& asked) {
    pybind11::list all;
    for (size_t i = 0; i < asked.params.size(); ++i)
      for (PyObject* item : items_of(asked.args[i]))
        if (is_tensor(item)) all.append(pybind11::tuple(pybind11::cast(impl_of(item)->sizes().vec())));
    return pybind11::tuple(all);
  }

  struct alignas(64) Set : std::array<uint64_t, 8> {};
  std::vector<Set> counts_;
  std::unordered_set<uint64_t> families_;
  Ref shapes_;
};

}  // namespace nxcore
