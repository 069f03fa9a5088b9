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

}  // namespace

unsigned char* Rare::count(const Asked& asked, bool allowed) {
  if ((!allowed && families_.empty()) || !asked.now.ordinary()) return nullptr;
  uint64_t family = asked.now.grad | asked.now.deterministic << 1;
  if (!asked.mix_all(Apart::families, family)) return nullptr;
  if (allowed) families_.insert(family);
  if (!families_.count(family)) return nullptr;
  if (counts_.size() >= CAPACITY) counts_.clear();
  mix(asked.hash, family);
  return &counts_[family];
}

bool Rare::serves(const Asked& asked) {
  unsigned char* met = count(asked, /*allowed=*/false);
  if (!met || *met >= RARE) return false;
  if (*met == 0)
    for (PyObject* table : items_of(shapes_.ptr()))
      if (PyDict_GET_SIZE(table) && PyDict_Contains(table, shapes_of(asked).ptr()))
        return *met = RARE, false;  // Python looks closer
  return ++*met;
}

size_t Rare::met(const Asked& asked, Ref shapes) {
  unsigned char* met = count(asked, /*allowed=*/static_cast<bool>(shapes));
  if (!met) return 0;
  if (shapes) shapes_ = std::move(shapes), *met = 1;
  return *met;
}

void Rare::clear() {
  counts_.clear();
  families_.clear();
}

int Rare::visit(visitproc visit, void* arg) const {
  Py_VISIT(shapes_.ptr());
  return 0;
}

}  // namespace nxcore
