/* A shared object with several compiled modules: the file that includes this one lists them.
 *
 *     #define MODULES(M) M("broker.engine.names", init_of_that_module) ...
 *     #include "compiled.h"
 *
 * Python finds one module by the name of a file; these are created by name, from the module
 * definition that their init function returns (PEP 489). broker/_compiled.py calls this.
 */
#include <Python.h>

#define DECLARE(name, init) PyMODINIT_FUNC init(void);
MODULES(DECLARE)
#undef DECLARE

static const struct {
    const char *name;
    PyObject *(*init)(void);
} modules[] = {
#define ROW(name, init) {name, init},
    MODULES(ROW)
#undef ROW
};

/* create(spec): a new module, not executed yet. ImportError: there is none of that name. */
static PyObject *create(PyObject *Py_UNUSED(self), PyObject *spec)
{
    PyObject *name = PyObject_GetAttrString(spec, "name"), *found = NULL;
    const char *text = name == NULL ? NULL : PyUnicode_AsUTF8(name);
    size_t i;
    if (text != NULL) {
        for (i = 0; i < sizeof modules / sizeof *modules; i++)
            if (strcmp(modules[i].name, text) == 0)
                break;
        if (i == sizeof modules / sizeof *modules)
            PyErr_Format(PyExc_ImportError, "no compiled module %s", text);
        else if ((found = modules[i].init()) != NULL)
            found = PyModule_FromDefAndSpec((PyModuleDef *)found, spec);
    }
    Py_XDECREF(name);
    return found;
}

/* execute(module): run the body of a module that was created here. */
static PyObject *execute(PyObject *Py_UNUSED(self), PyObject *module)
{
    PyModuleDef *definition = PyModule_GetDef(module);
    if (definition == NULL || PyModule_ExecDef(module, definition) < 0)
        return NULL;
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"create", create, METH_O, NULL},
    {"execute", execute, METH_O, NULL},
    {NULL, NULL, 0, NULL},
};

/* names: a tuple of the modules' full names. */
static int add_names(PyObject *self)
{
    Py_ssize_t count = sizeof modules / sizeof *modules, i;
    PyObject *names = PyTuple_New(count);
    for (i = 0; names != NULL && i < count; i++) {
        PyObject *name = PyUnicode_InternFromString(modules[i].name);
        if (name == NULL)
            Py_CLEAR(names);
        else
            PyTuple_SET_ITEM(names, i, name);
    }
    if (names == NULL)
        return -1;
    i = PyModule_AddObjectRef(self, "names", names);
    Py_DECREF(names);
    return (int)i;
}

static PyModuleDef_Slot slots[] = {{Py_mod_exec, add_names}, {0, NULL}};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, .m_name = "_compiled", .m_methods = methods, .m_slots = slots};

PyMODINIT_FUNC PyInit__compiled(void)
{
    return PyModuleDef_Init(&definition);
}
