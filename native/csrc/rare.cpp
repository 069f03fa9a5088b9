#include "rare.h"

namespace nxcore {
namespace {

constexpr uint64_t RARE = 3, COUNT = 0xFF;  // as in nxcore.call.rare; the bits of a count

// The shapes of a call's tensors, as Recorded keeps them.
Ref shapes_of(const Asked& asked) {
  pybind11::list all;
  for (size_t i = 0; i < asked.params.size(); ++i)
    for (PyObject* item : items_of(asked.args[i]))
      if (is_tensor(item)) all.append(sizes_of(item));
  return pybind11::tuple(all);
}

// What a call is counted by, and its family. Returns false where it may not wait.
bool apart(const Asked& asked, uint64_t& call, uint64_t& family) {
  call = asked.now.grad | asked.now.deterministic << 1, family = 0;
  if (!asked.now.ordinary() || !asked.mix_all(Apart::families, call, family)) return false;
  mix(call, family), mix(asked.hash, call);
  return true;
}

}  // namespace

uint64_t& Rare::count(uint64_t call) {
  counts_.resize(CAPACITY / 8);
  Set& set = counts_[call % counts_.size()];
  for (uint64_t& one : set)
    if ((one ^ call) <= COUNT) return one;
  for (size_t i = set.size() - 1; i > 0; --i) set[i] = set[i - 1];
  return set[0] = call & ~COUNT;
}

bool Rare::serves(const Asked& asked) {
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

size_t Rare::met(const Asked& asked, Ref shapes) {
  uint64_t call, family;
  if (!apart(asked, call, family)) return 0;
  uint64_t& met = count(call);
  if (!shapes || (met & COUNT) >= RARE) return met & COUNT;
  if (families_.size() >= CAPACITY) families_.clear();
  families_.insert(family), shapes_ = std::move(shapes);
  return ++met & COUNT;
}

}  // namespace nxcore
