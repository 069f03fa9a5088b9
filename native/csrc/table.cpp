#include "table.h"

#include <stdexcept>

namespace nxcore {

ArgumentGuard::ArgumentGuard(Kind kind, PyObject* value) : form_(Form::value) {
  const bool number = PyLong_Check(value) || PyFloat_Check(value) || PyComplex_Check(value);
  if (kind == Kind::fixed) {
    value_ = share(value);
  } else if (kind == Kind::scalar || (kind == Kind::operand && number)) {
    form_ = Form::of_class;
    value_ = share(reinterpret_cast<PyObject*>(Py_TYPE(value)));
  } else if (value == Py_None && (kind == Kind::tensor || kind == Kind::out)) {
    form_ = Form::none;
  } else if (kind != Kind::out && (is_tensor(value) || (kind == Kind::many && is_sequence(value)))) {
    form_ = is_tensor(value) ? Form::tensor : Form::sequence;
    for (PyObject* item : items_of(value)) {
      if (!is_tensor(item)) throw std::invalid_argument("not a tensor");
      tensors_.emplace_back(item);
    }
  } else {
    throw std::invalid_argument("no guard can be made, such as for whether out is an input");
  }
}

bool ArgumentGuard::passes(PyObject* value) const {
  if (form_ == Form::none) return value == Py_None;
  if (form_ == Form::of_class) return reinterpret_cast<PyObject*>(Py_TYPE(value)) == value_.ptr();
  if (form_ == Form::value) return alike(value, value_.ptr());
  const auto items = items_of(value);
  if ((form_ == Form::sequence) != is_sequence(value) || items.size() != tensors_.size()) return false;
  for (size_t i = 0; i < items.size(); ++i)
    if (!tensors_[i].passes(items[i])) return false;
  return true;
}

int ArgumentGuard::visit(visitproc visit, void* arg) const {
  Py_VISIT(value_.ptr());
  return 0;
}

bool Entry::passes(const Around& now, PyObject* const* args) const {
  if (!(around == now)) return false;
  for (size_t i = 0; i < guards.size(); ++i)
    if (!guards[i].passes(args[i])) return false;
  return true;
}

int Entry::visit(visitproc visit, void* arg) const {
  Py_VISIT(around.preference.ptr());
  Py_VISIT(key.ptr());
  Py_VISIT(plan.ptr());
  for (const ArgumentGuard& guard : guards)
    if (const int stopped = guard.visit(visit, arg)) return stopped;
  return 0;
}

bool Table::hash(const std::vector<Param>& params, const Around& now, PyObject* const* args, uint64_t& hash) const {
  hash = now.included;
  mix(now.grad, hash);
  for (size_t i = 0; i < params.size(); ++i) {
    PyObject* value = args[i];
    const Kind kind = params[i].kind;
    if (kind == Kind::out) {
      if (value != Py_None) return false;
    } else if (kind == Kind::fixed) {
      const Py_hash_t of_value = PyObject_Hash(value);
      if (of_value == -1) {  // a list, which is a tuple in the key
        PyErr_Clear();
        return false;
      }
      mix(static_cast<uint64_t>(of_value), hash);
    } else if (kind == Kind::many && is_sequence(value)) {
      const auto items = items_of(value);
      mix(items.size(), hash);
      if (!items.empty() && !(is_tensor(items[0]) && mix_sizes(items[0], hash))) return false;
    } else if (is_tensor(value)) {
      if (!mix_sizes(value, hash)) return false;
    }
  }
  return true;
}

const Entry* Table::find(uint64_t hash, const Around& now, PyObject* const* args) const {
  const auto found = entries_.find(hash);
  if (found == entries_.end()) return nullptr;
  for (const auto& entry : found->second)
    if (entry->passes(now, args)) return entry.get();
  return nullptr;
}

void Table::add(uint64_t hash, std::unique_ptr<Entry> entry, PyObject* const* args) {
  if (size_ >= CAPACITY) clear();
  std::unique_ptr<Entry> dropped;  // freed at the end: that may run code which changes this table
  auto& row = entries_[hash];
  for (auto old = row.begin(); old != row.end(); ++old)
    if ((*old)->passes(entry->around, args)) {
      dropped = std::move(*old);
      row.erase(old);
      --size_;
      break;
    }
  row.insert(row.begin(), std::move(entry));
  ++size_;
  if (row.size() > ALIKE) {
    dropped = std::move(row.back());
    row.pop_back();
    --size_;
  }
}

void Table::clear() {
  decltype(entries_) dropped;
  dropped.swap(entries_);
  size_ = 0;
}

int Table::visit(visitproc visit, void* arg) const {
  for (const auto& row : entries_)
    for (const auto& entry : row.second)
      if (const int stopped = entry->visit(visit, arg)) return stopped;
  return 0;
}

}  // namespace nxcore
