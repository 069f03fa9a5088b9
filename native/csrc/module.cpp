// The extension's module. Its name ends with the minor version of torch that it was built against.
#include "guard.h"
#include "types.h"

namespace nxcore {
namespace {
PyObject* setup(PyObject*, PyObject* args) {
  PyObject *preference, *forward, *raw_stream;
  if (!PyArg_ParseTuple(args, "O!O!O", &PyContextVar_Type, &preference, &PyDict_Type, &forward, &raw_stream))
    return nullptr;
  environment() = {share(preference), share(forward), steal(PyUnicode_InternFromString("_current_level")),
                   share(raw_stream)};
  Py_RETURN_NONE;
}

PyMethodDef methods[] = {
    {"setup", setup, METH_VARARGS, "setup(preference, names of torch.autograd.forward_ad, raw_stream): comes first."},
    {"adopt", adopt, METH_VARARGS, "adopt(operator, params, lowers, call): calls of operator come here."},
    {nullptr, nullptr, 0, nullptr}};
PyModuleDef module = {PyModuleDef_HEAD_INIT, "nxcore_native", nullptr, -1, methods, nullptr, nullptr, nullptr, nullptr};

}  // namespace
}  // namespace nxcore

#define INIT_OF(name) PyInit_##name
#define INIT(name) INIT_OF(name)

extern "C" __attribute__((visibility("default"))) PyObject* INIT(TORCH_EXTENSION_NAME)(void) {
  using namespace nxcore;
  PyObject* made = PyModule_Create(&module);
  if (!made) return nullptr;
  for (PyTypeObject* type : {&LookupType, &DirectType, &JoinType})
    if (PyModule_AddType(made, type) < 0) Py_CLEAR(made);
  if (made && !ready_node()) Py_CLEAR(made);
  return made;
}
