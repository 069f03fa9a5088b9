// The extension's types, one file each.
#pragma once
#include "python.h"

namespace nxcore {

extern PyTypeObject LookupType;  // the base of an operator's class, which finds plans without running Python
extern PyTypeObject DirectType;  // a plan that is a function of machine code, run without the interpreter's lock
extern PyTypeObject JoinType;    // a forward plan and a backward operator as one node of autograd

// adopt(operator, params, lowers, call): calls of `operator` come to its Lookup from now on.
PyObject* adopt(PyObject* module, PyObject* args);

// Gives the node of Join its class in Python. Returns false with an error set.
bool ready_node();

}  // namespace nxcore
