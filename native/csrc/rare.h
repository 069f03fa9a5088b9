// Rare: counts of calls that no plan is found for. Torch serves the first ones; see nxcore.call.rare.
#pragma once
#include <array>
#include <unordered_set>

#include "table.h"

namespace nxcore {

constexpr uint64_t RARE = 3, COUNT = 0xFF;  // as in nxcore.call.rare; the bits of a count

// Once the Python path has met one call of a family, a call of other sizes is torch's after its arguments were checked,
// unless such sizes are on record. Used with the interpreter's lock held.
class Rare {
 public:
  Holds holds = Holds::same;  // of the operator's checks

  // Counts a call, and returns whether torch serves it. `check` checks the arguments of a new one, which code of a
  // program does: `asked` isn't read after.
  template <typename Check>
  bool serves(const Asked& asked, const Check& check) {
    uint64_t call, family;
    if (families_.empty() || !apart(asked, call, family) || !families_.count(family)) return false;
    const uint64_t met = count(call) & COUNT;
    if (met >= RARE) return false;
    if (!met) {
      for (PyObject* table : items_of(shapes_.ptr()))
        if (PyDict_GET_SIZE(table) && PyDict_Contains(table, shapes_of(asked).ptr()))
          return count(call) |= RARE, false;  // Python looks closer
      if (!is_valid(asked, family, check)) return false;
    }
    return ++count(call);
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

  void clear() { counts_.clear(), families_.clear(), images_.clear(); }
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

  // Whether the operator's check passes, or passed for sizes that it doesn't tell apart from these.
  template <typename Check>
  bool is_valid(const Asked& asked, uint64_t family, const Check& check) {
    Sizes sizes;
    if (holds == Holds::same || !sizes.read(asked, holds)) return check();
    mix(family, sizes.hash);
    const auto found = images_.find(sizes.hash);
    const auto& [height, width] = sizes.image;
    if (found != images_.end() && found->second.first <= height && found->second.second <= width) return true;
    if (!check()) return false;
    if (images_.size() >= CAPACITY) images_.clear();
    images_[sizes.hash] = sizes.image;
    return true;
  }

  // What a call is counted by, which tells apart all that a check may read, and its family. Returns false where it may
  // not wait.
  static bool apart(const Asked& asked, uint64_t& call, uint64_t& family) {
    call = asked.now.grad | asked.now.deterministic << 1, family = 0;
    if (!asked.now.ordinary() || !asked.mix_all(Apart::families, call, family)) return false;
    mix(call, family), mix(asked.hash, call), asked.mix_layouts(call);
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
  std::unordered_map<uint64_t, std::pair<int64_t, int64_t>> images_;  // by family and sizes, an image that passed
  Ref shapes_;
};

}  // namespace nxcore
