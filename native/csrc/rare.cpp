#include "rare.h"

namespace nxcore {
namespace {

constexpr unsigned char RARE = 3;  // as in nxcore.call.rare

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

bool Rare::serves(const Asked& asked) {
  uint64_t call, family;
  if (families_.empty() || !apart(asked, call, family) || !families_.count(family)) return false;
  if (counts_.size() >= CAPACITY) counts_.clear();
  unsigned char& met = counts_[call];
  if (met >= RARE) return false;
  if (met == 0)
    for (PyObject* table : items_of(shapes_.ptr()))
      if (PyDict_GET_SIZE(table) && PyDict_Contains(table, shapes_of(asked).ptr()))
        return met = RARE, false;  // Python looks closer
  return ++met;
}

size_t Rare::met(const Asked& asked, Ref shapes) {
  uint64_t call, family;
  if (!apart(asked, call, family)) return 0;
  if (!shapes) return counts_.count(call) ? counts_[call] : 0;
  if (std::max(counts_.size(), families_.size()) >= CAPACITY) clear();
  shapes_ = std::move(shapes);
  families_.insert(family);
  unsigned char& met = counts_[call];
  return met >= RARE ? met : ++met;
}

int Rare::visit(visitproc visit, void* arg) const {
  Py_VISIT(shapes_.ptr());
  return 0;
}

}  // namespace nxcore
