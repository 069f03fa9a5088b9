// The launch of a kernel from Python: pointers into a block of parameters, torch's stream, cuLaunchKernel.
//
// Includes no CUDA header and links no CUDA library: setup() takes the addresses of the driver's functions.
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <string.h>

#define LARGEST 32768  // bytes of a kernel's parameters, at most
#define ALIGNED 16     // bytes: the widest load

typedef int (*launch_kernel_t)(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*,
                               void**, void**);
typedef int (*get_context_t)(void**);
typedef int (*push_context_t)(void*);
typedef int (*error_name_t)(int, const char**);

static launch_kernel_t launch_kernel;
static get_context_t get_context, pop_context;
static push_context_t push_context;
static error_name_t error_name;
static PyObject* raw_stream;  // torch's function: a device's index to its current stream
static PyObject *data_ptr_name, *tail_name;

typedef struct {
  PyObject_HEAD
  void *function, *context;
  PyObject *index, *pack, *name;
  unsigned shape[6], shared;
  Py_ssize_t pointers, size;  // size: bytes of the whole block
  char* values;               // what follows the pointers
} Handle;

typedef struct {
  PyObject_HEAD
  PyObject *vector, *scalar;  // Handles; vector may be None
} Guarded;

static PyTypeObject* handle_type;

static PyObject* setup(PyObject* module, PyObject* args) {
  unsigned long long launch, get, push, pop, name;
  PyObject* stream;
  (void)module;
  if (!PyArg_ParseTuple(args, "KKKKKO", &launch, &get, &push, &pop, &name, &stream)) return NULL;
  launch_kernel = (launch_kernel_t)(uintptr_t)launch;
  get_context = (get_context_t)(uintptr_t)get;
  push_context = (push_context_t)(uintptr_t)push;
  pop_context = (get_context_t)(uintptr_t)pop;
  error_name = (error_name_t)(uintptr_t)name;
  Py_INCREF(stream);
  Py_XDECREF(raw_stream);
  raw_stream = stream;
  Py_RETURN_NONE;
}

static int handle_init(Handle* self, PyObject* args, PyObject* kwargs) {
  unsigned long long function, context;
  const char* values;
  Py_ssize_t length;
  PyObject *index, *pack, *name;
  (void)kwargs;
  if (self->index) {
    PyErr_SetString(PyExc_TypeError, "a handle is bound once");
    return -1;
  }
  if (!raw_stream) {
    PyErr_SetString(PyExc_RuntimeError, "setup() comes before the first handle");
    return -1;
  }
  if (!PyArg_ParseTuple(args, "KKO(IIIIII)Iny#OO", &function, &context, &index, &self->shape[0], &self->shape[1],
                        &self->shape[2], &self->shape[3], &self->shape[4], &self->shape[5], &self->shared,
                        &self->pointers, &values, &length, &pack, &name))
    return -1;
  self->size = self->pointers * (Py_ssize_t)sizeof(void*) + length;
  if (self->pointers < 0 || self->size > LARGEST) {
    PyErr_Format(PyExc_ValueError, "%S: a kernel takes at most %d bytes of parameters, got %zd", name, LARGEST,
                 self->size);
    return -1;
  }
  self->values = PyMem_Malloc(length ? length : 1);
  if (!self->values) {
    PyErr_NoMemory();
    return -1;
  }
  memcpy(self->values, values, length);
  self->function = (void*)(uintptr_t)function;
  self->context = (void*)(uintptr_t)context;
  Py_INCREF(index);
  Py_INCREF(pack);
  Py_INCREF(name);
  self->index = index;
  self->pack = pack;
  self->name = name;
  return 0;
}

static void handle_dealloc(Handle* self) {
  PyTypeObject* type = Py_TYPE((PyObject*)self);
  PyMem_Free(self->values);
  Py_XDECREF(self->index);
  Py_XDECREF(self->pack);
  Py_XDECREF(self->name);
  ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
  Py_DECREF(type);
}

static PyObject* fail(const Handle* self, const char* what, int status) {
  const char* name = NULL;
  error_name(status, &name);
  return PyErr_Format(PyExc_RuntimeError, "%S: %s returned %s (%d)", self->name, what, name ? name : "an error",
                      status);
}

// Launches with the block's pointers filled in; `tail` is a tuple of values that replace the handle's, or NULL.
static PyObject* fire(Handle* self, char* block, PyObject* tail) {
  Py_ssize_t head = self->pointers * (Py_ssize_t)sizeof(void*);
  if (!tail || tail == Py_None) {
    memcpy(block + head, self->values, self->size - head);
  } else {
    char* bytes;
    Py_ssize_t length;
    PyObject* packed = PyObject_CallObject(self->pack, tail);
    if (!packed) return NULL;
    if (PyBytes_AsStringAndSize(packed, &bytes, &length) < 0 || length != self->size - head) {
      Py_DECREF(packed);
      return PyErr_Occurred() ? NULL : PyErr_Format(PyExc_ValueError, "%S: got a tail of another size", self->name);
    }
    memcpy(block + head, bytes, length);
    Py_DECREF(packed);
  }
  PyObject* number = PyObject_CallFunctionObjArgs(raw_stream, self->index, NULL);
  if (!number) return NULL;
  void* stream = PyLong_AsVoidPtr(number);
  Py_DECREF(number);
  if (!stream && PyErr_Occurred()) return NULL;

  void* parameters[1] = {block};
  const unsigned* s = self->shape;
  int status, pushed = 0;
  const char* what = "cuCtxPushCurrent";
  void* current = NULL;
  // A launch blocks where the stream's queue is full, and what it waits for may need the interpreter.
  Py_BEGIN_ALLOW_THREADS
  status = get_context(&current);
  if (status || current != self->context) {  // another device's, or a thread that has none yet
    status = push_context(self->context);
    pushed = status == 0;
  }
  if (!status) {
    what = "cuLaunchKernel";
    status = launch_kernel(self->function, s[0], s[1], s[2], s[3], s[4], s[5], self->shared, stream, parameters, NULL);
  }
  if (pushed) pop_context(&current);
  Py_END_ALLOW_THREADS
  if (status) return fail(self, what, status);
  Py_RETURN_NONE;
}

// Writes the tensors' addresses into the block. Returns their bits, or sets `failed`.
static uintptr_t gather(const Handle* self, PyObject* tensors, char* block, int* failed) {
  uintptr_t bits = 0;
  Py_ssize_t count = PyTuple_Size(tensors);
  *failed = 1;
  if (count != self->pointers) {
    PyErr_Format(PyExc_TypeError, "%S takes %zd tensors, got %zd", self->name, self->pointers, count);
    return 0;
  }
  for (Py_ssize_t i = 0; i < count; ++i) {
    PyObject* tensor = PyTuple_GetItem(tensors, i);
    void* pointer = NULL;
    if (tensor != Py_None) {
      PyObject* number = PyObject_CallMethodObjArgs(tensor, data_ptr_name, NULL);
      if (!number) return 0;
      pointer = PyLong_AsVoidPtr(number);
      Py_DECREF(number);
      if (!pointer && PyErr_Occurred()) return 0;
    }
    memcpy(block + i * sizeof(void*), &pointer, sizeof(void*));
    bits |= (uintptr_t)pointer;
  }
  *failed = 0;
  return bits;
}

// Reads the one keyword, `tail`: a tuple or None. Returns -1 where it is neither, or another keyword.
static int read_tail(PyObject* kwargs, PyObject** tail) {
  *tail = NULL;
  if (!kwargs || PyDict_Size(kwargs) == 0) return 0;
  *tail = PyDict_GetItemWithError(kwargs, tail_name);
  if (*tail && PyDict_Size(kwargs) == 1 && (*tail == Py_None || PyTuple_Check(*tail))) return 0;
  if (!PyErr_Occurred()) PyErr_SetString(PyExc_TypeError, "a launch takes tensors, and tail=, a tuple of numbers");
  return -1;
}

static PyObject* handle_call(Handle* self, PyObject* args, PyObject* kwargs) {
  char block[LARGEST];
  PyObject* tail;
  int failed;
  if (!self->index) return PyErr_Format(PyExc_RuntimeError, "this handle was never bound");
  if (read_tail(kwargs, &tail) < 0) return NULL;
  gather(self, args, block, &failed);
  return failed ? NULL : fire(self, block, tail);
}

static int guarded_init(Guarded* self, PyObject* args, PyObject* kwargs) {
  PyObject *vector, *scalar;
  (void)kwargs;
  if (self->scalar) {
    PyErr_SetString(PyExc_TypeError, "a guard is bound once");
    return -1;
  }
  if (!PyArg_ParseTuple(args, "OO!", &vector, handle_type, &scalar)) return -1;
  if (vector != Py_None && !PyObject_TypeCheck(vector, handle_type)) {
    PyErr_SetString(PyExc_TypeError, "a guard takes two launches, or None and a launch");
    return -1;
  }
  if (!((Handle*)scalar)->index || (vector != Py_None && !((Handle*)vector)->index)) {
    PyErr_SetString(PyExc_RuntimeError, "this handle was never bound");
    return -1;
  }
  Py_INCREF(vector);
  Py_INCREF(scalar);
  self->vector = vector;
  self->scalar = scalar;
  return 0;
}

static void guarded_dealloc(Guarded* self) {
  PyTypeObject* type = Py_TYPE((PyObject*)self);
  Py_XDECREF(self->vector);
  Py_XDECREF(self->scalar);
  ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
  Py_DECREF(type);
}

static PyObject* guarded_call(Guarded* self, PyObject* args, PyObject* kwargs) {
  char block[LARGEST];
  PyObject* tail;
  int failed;
  if (!self->scalar) return PyErr_Format(PyExc_RuntimeError, "this guard was never bound");
  if (read_tail(kwargs, &tail) < 0) return NULL;
  uintptr_t bits = gather((Handle*)self->scalar, args, block, &failed);
  if (failed) return NULL;
  Handle* chosen = (Handle*)(self->vector == Py_None || bits % ALIGNED ? self->scalar : self->vector);
  if (chosen->pointers != ((Handle*)self->scalar)->pointers)
    return PyErr_Format(PyExc_TypeError, "a guard's launches take equally many tensors");
  return fire(chosen, block, tail);
}

static PyType_Slot handle_slots[] = {
    {Py_tp_init, handle_init}, {Py_tp_dealloc, handle_dealloc}, {Py_tp_call, handle_call}, {0, NULL}};
static PyType_Spec handle_spec = {"nxcore_cuda._launch.Handle", sizeof(Handle), 0,
                                  Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE, handle_slots};
static PyType_Slot guarded_slots[] = {
    {Py_tp_init, guarded_init}, {Py_tp_dealloc, guarded_dealloc}, {Py_tp_call, guarded_call}, {0, NULL}};
static PyType_Spec guarded_spec = {"nxcore_cuda._launch.Guarded", sizeof(Guarded), 0, Py_TPFLAGS_DEFAULT,
                                   guarded_slots};

static PyMethodDef methods[] = {
    {"setup", setup, METH_VARARGS,
     "setup(cuLaunchKernel, cuCtxGetCurrent, cuCtxPushCurrent, cuCtxPopCurrent, cuGetErrorName, raw_stream)"},
    {NULL, NULL, 0, NULL}};
static struct PyModuleDef module_def = {PyModuleDef_HEAD_INIT, "_launch", NULL, -1, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__launch(void) {
  PyObject* module = PyModule_Create(&module_def);
  if (!module) return NULL;
  data_ptr_name = PyUnicode_InternFromString("data_ptr");
  tail_name = PyUnicode_InternFromString("tail");
  PyObject* handle = PyType_FromSpec(&handle_spec);
  PyObject* guarded = PyType_FromSpec(&guarded_spec);
  if (!data_ptr_name || !tail_name || !handle || !guarded || PyModule_AddObjectRef(module, "Handle", handle) < 0 ||
      PyModule_AddObjectRef(module, "Guarded", guarded) < 0) {
    Py_DECREF(module);
    return NULL;
  }
  handle_type = (PyTypeObject*)handle;
  Py_DECREF(guarded);
  return module;
}
