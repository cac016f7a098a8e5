/* Compares remembered words and tensor metadata with what is there now. Compiled without headers,
   loaded with ctypes, called with the GIL held; native.py says what the fields mean. */

typedef unsigned long long word;
typedef long long number;

struct entry {
    const word *at;
    word want;
};

struct tensor {
    char *object; /* the Python object */
    int dtype, device_type, device_index, layout;
    int requires_grad, conj, neg, inference, dim;
    number numbers[]; /* sizes, then strides */
};

struct table {
    number entries, tensors;
    const struct entry *entry;
    char **tensor;
};

/* From libtorch: its stable C interface for metadata, which takes `at::Tensor *`, and four
   functions of C++ that read one bit each. */
static int (*get_dtype)(void *, int *);
static int (*get_device_type)(void *, int *);
static int (*get_device_index)(void *, int *);
static int (*get_layout)(void *, int *);
static int (*get_dim)(void *, number *);
static int (*get_sizes)(void *, number **);
static int (*get_strides)(void *, number **);
static _Bool (*requires_grad)(const void *impl);
static _Bool (*is_conj)(const void *tensor);
static _Bool (*is_neg)(const void *tensor);
static _Bool (*is_inference)(const void *tensor);
static int strided;
static number offset; /* of the at::Tensor in its Python object */

void use(void **functions, int strided_layout, number offset_of_tensor)
{
    get_dtype = (int (*)(void *, int *))functions[0];
    get_device_type = (int (*)(void *, int *))functions[1];
    get_device_index = (int (*)(void *, int *))functions[2];
    get_layout = (int (*)(void *, int *))functions[3];
    get_dim = (int (*)(void *, number *))functions[4];
    get_sizes = (int (*)(void *, number **))functions[5];
    get_strides = (int (*)(void *, number **))functions[6];
    requires_grad = (_Bool (*)(const void *))functions[7];
    is_conj = (_Bool (*)(const void *))functions[8];
    is_neg = (_Bool (*)(const void *))functions[9];
    is_inference = (_Bool (*)(const void *))functions[10];
    strided = strided_layout;
    offset = offset_of_tensor;
}

/* All fields but sizes and strides, which stay where they are; 0 when the tensor has none. */
static int read(char *object, struct tensor *out, number **sizes, number **strides)
{
    void *tensor = object + offset;
    number dim;
    if (get_layout(tensor, &out->layout) || out->layout != strided)
        return 0;
    if (get_dtype(tensor, &out->dtype) || get_device_type(tensor, &out->device_type) ||
        get_device_index(tensor, &out->device_index) || get_dim(tensor, &dim) ||
        get_sizes(tensor, sizes) || get_strides(tensor, strides))
        return 0;
    out->object = object;
    out->dim = (int)dim;
    out->requires_grad = requires_grad(*(void **)tensor);
    out->conj = is_conj(tensor);
    out->neg = is_neg(tensor);
    out->inference = is_inference(tensor);
    return 1;
}

/* The layout code of a tensor, or -1. */
int layout(char *object)
{
    int found;
    return get_layout(object + offset, &found) ? -1 : found;
}

/* Fill `out`, which has room for `room` numbers; 0 when that cannot be done. */
int describe(char *object, struct tensor *out, number room)
{
    number *sizes, *strides, i;
    if (!read(object, out, &sizes, &strides) || 2 * out->dim > room)
        return 0;
    for (i = 0; i < out->dim; i++) {
        out->numbers[i] = sizes[i];
        out->numbers[out->dim + i] = strides[i];
    }
    return 1;
}

static int same(const struct tensor *old)
{
    struct tensor now;
    number *sizes, *strides, i, differ = 0;
    if (!read(old->object, &now, &sizes, &strides))
        return 0;
    if (now.dim != old->dim || now.dtype != old->dtype || now.device_type != old->device_type ||
        now.device_index != old->device_index || now.requires_grad != old->requires_grad ||
        now.conj != old->conj || now.neg != old->neg || now.inference != old->inference)
        return 0;
    for (i = 0; i < old->dim; i++)
        differ |= (sizes[i] ^ old->numbers[i]) | (strides[i] ^ old->numbers[old->dim + i]);
    return differ == 0;
}

/* 1 when every word and every tensor is as it was. Words come first and in the order in which they
   were found: a word lies in an object that the words before it show to be alive. */
int unchanged(const struct table *table)
{
    number i;
    for (i = 0; i < table->entries; i++)
        if (*table->entry[i].at != table->entry[i].want)
            return 0;
    for (i = 0; i < table->tensors; i++)
        if (!same((const struct tensor *)table->tensor[i]))
            return 0;
    return 1;
}
