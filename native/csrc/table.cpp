#include "table.h"

#include <algorithm>
#include <stdexcept>

namespace nxcore {

bool Asked::read(bool lowers) {
  if (!now.read(lowers)) return false;
  hash = now.included;
  mix(now.grad, hash);
  return mix_all(Apart::calls, hash, hash);
}

bool Asked::mix_all(Apart apart, uint64_t& hash, uint64_t& numbers) const {
  const bool families = apart == Apart::families;
  for (size_t i = 0; i < params.size(); ++i) {
    PyObject* value = args[i];
    const Kind kind = params[i].kind;
    if (kind == Kind::out && value != Py_None) return false;
    if (is_tensor(value) || (kind == Kind::many && is_sequence(value))) {
      const auto items = items_of(value);
      mix(items.size() << 1 | is_tensor(value), hash);
      for (PyObject* item : families ? items : items.slice(0, std::min<size_t>(items.size(), 1)))
        if (!is_tensor(item) || !mix_tensor(item, apart, hash)) return false;
    } else if (families && kind == Kind::size && is_sequence(value)) {
      mix(items_of(value).size(), hash);
    } else if (families || kind == Kind::fixed || kind == Kind::size) {  // a number may be out of range
      const Py_hash_t of_value = PyObject_Hash(value);
      if (of_value == -1) return PyErr_Clear(), false;  // a list, which is a tuple in the key
      mix(static_cast<uint64_t>(of_value), kind == Kind::scalar || kind == Kind::operand ? numbers : hash);
      mix(reinterpret_cast<uintptr_t>(Py_TYPE(value)), hash);
    }
  }
  return true;
}

ArgumentGuard::ArgumentGuard(Kind kind, PyObject* value) : form_(Form::value) {
  const bool number = PyLong_Check(value) || PyFloat_Check(value) || PyComplex_Check(value);
  if (kind == Kind::fixed || kind == Kind::size || (value == Py_None && (kind == Kind::tensor || kind == Kind::out))) {
    value_ = share(value);
  } else if (kind == Kind::scalar || (kind == Kind::operand && number)) {
    form_ = Form::of_class;
    value_ = share(reinterpret_cast<PyObject*>(Py_TYPE(value)));
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
  if (form_ == Form::of_class) return reinterpret_cast<PyObject*>(Py_TYPE(value)) == value_.ptr();
  if (form_ == Form::value) return alike(value, value_.ptr());
  const auto items = items_of(value);
  if ((form_ == Form::sequence) != is_sequence(value) || items.size() != tensors_.size()) return false;
  for (size_t i = 0; i < items.size(); ++i)
    if (!tensors_[i].passes(items[i])) return false;
  return true;
}

Entry::Entry(const Asked& asked, Found found) : Found(std::move(found)), around(asked.now) {
  for (size_t i = 0; i < asked.params.size(); ++i) guards.emplace_back(asked.params[i].kind, asked.args[i]);
}

bool Entry::passes(const Asked& asked) const {
  if (!(around == asked.now)) return false;
  for (size_t i = 0; i < guards.size(); ++i)
    if (!guards[i].passes(asked.args[i])) return false;
  return true;
}

const Entry* Table::find(const Asked& asked) const {
  const auto found = entries_.find(asked.hash);
  if (found == entries_.end()) return nullptr;
  for (const auto& entry : found->second)
    if (entry->passes(asked)) return entry.get();
  return nullptr;
}

void Table::add(uint64_t hash, std::unique_ptr<Entry> entry) {
  if (size_ >= CAPACITY) clear();
  std::unique_ptr<Entry> dropped;  // freed at the end: that may run code which changes this table
  auto& row = entries_[hash];
  row.insert(row.begin(), std::move(entry));
  ++size_;
  if (row.size() <= ALIKE) return;
  dropped = std::move(row.back());
  row.pop_back();
  --size_;
}

int Table::visit(visitproc visit, void* arg) const {
  for (const auto& row : entries_)
    for (const auto& entry : row.second)
      if (const int stopped = entry->visit(visit, arg)) return stopped;
  return 0;
}

}  // namespace nxcore
