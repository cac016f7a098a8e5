/* Compares remembered words and tensor metadata with what is there now, and reads many tensors at
   once. Compiled without headers,
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
    int requires_grad, conj, neg, inference;
    int dim; /* -1: there is none */
    int of_grad; /* it is the gradient of the object's tensor */
    number numbers[]; /* sizes, then strides */
};

struct table {
    number entries, tensors;
    const struct entry *entry;
    char **tensor;
    word *impl; /* what was found for each tensor; null when they may be the same */
    word *set;  /* room for `mask` + 1 words, more than twice as many as there are tensors */
    word mask;
};

/* From libtorch: its stable C interface, which takes `at::Tensor *`, and functions of C++ for what
   that has no names for. */
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
static void *(*get_grad)(const void *impl);
static int (*get_data_ptr)(void *, void **);
static _Bool (*is_view)(const void *tensor);
static void (*bump_version)(const void *tensor);
static _Bool (*is_leaf)(const void *tensor);
static number (*version)(const void *tensor);
static _Bool (*is_zero)(const void *tensor);
static _Bool (*has_storage)(const void *impl);
static void *(*bytes_of)(const char *, number); /* from Python: makes a bytes object */
static void *(*bool_of)(long);
static void (*drop)(void *);
static number content; /* of a bytes object: where its bytes begin */
static int strided;
static number offset; /* of the at::Tensor in its Python object */
static number back;   /* of the pointer to that object in what the at::Tensor points to */
static word absent;   /* what an at::Tensor that is none points to */
static word plain;    /* the class of tensors */
static word parameter; /* and that of parameters */

void use(void **functions, int strided_layout, number offset_of_tensor, number offset_back,
         char *sample, word class_of_tensors,
         word class_of_parameters, number content_of_bytes)
{
    get_dtype = (int (*)(void *, int *))functions[0];
    get_device_type = (int (*)(void *, int *))functions[1];
    get_device_index = (int (*)(void *, int *))functions[2];
    get_layout = (int (*)(void *, int *))functions[3];
    get_dim = (int (*)(void *, number *))functions[4];
    get_sizes = (int (*)(void *, number **))functions[5];
    get_strides = (int (*)(void *, number **))functions[6];
    get_data_ptr = (int (*)(void *, void **))functions[7];
    is_conj = (_Bool (*)(const void *))functions[8];
    is_neg = (_Bool (*)(const void *))functions[9];
    is_inference = (_Bool (*)(const void *))functions[10];
    is_view = (_Bool (*)(const void *))functions[11];
    bump_version = (void (*)(const void *))functions[12];
    is_leaf = (_Bool (*)(const void *))functions[13];
    version = (number (*)(const void *))functions[14];
    is_zero = (_Bool (*)(const void *))functions[15];
    requires_grad = (_Bool (*)(const void *))functions[16];
    get_grad = (void *(*)(const void *))functions[17];
    has_storage = (_Bool (*)(const void *))functions[18];
    bytes_of = (void *(*)(const char *, number))functions[19];
    bool_of = (void *(*)(long))functions[20];
    drop = (void (*)(void *))functions[21];
    content = content_of_bytes;
    strided = strided_layout;
    offset = offset_of_tensor;
    back = offset_back;
    absent = *(word *)get_grad(*(void **)(sample + offset));
    plain = class_of_tensors;
    parameter = class_of_parameters;
}

static void *tensor_of(char *object, int of_grad)
{
    void *tensor = object + offset;
    return of_grad ? get_grad(*(void **)tensor) : tensor;
}

/* All fields but sizes and strides, which stay where they are; 0 when the tensor has none, and for
   gradients of another class: one that no object stands for yet will be a plain tensor. */
static int read(char *object, int of_grad, struct tensor *out, number **sizes, number **strides)
{
    void *tensor = tensor_of(object, of_grad);
    number dim;
    word known;
    out->object = object;
    out->of_grad = of_grad;
    if (of_grad) {
        out->dim = -1;
        if (*(word *)tensor == absent)
            return 1;
        known = *(word *)(*(char **)tensor + back) & ~(word)7;
        if (known && ((word *)known)[1] != plain)
            return 0;
    }
    if (get_layout(tensor, &out->layout) || out->layout != strided)
        return 0;
    if (get_dtype(tensor, &out->dtype) || get_device_type(tensor, &out->device_type) ||
        get_device_index(tensor, &out->device_index) || get_dim(tensor, &dim) ||
        get_sizes(tensor, sizes) || get_strides(tensor, strides))
        return 0;
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
int describe(char *object, struct tensor *out, number room, int of_grad)
{
    number *sizes, *strides, i;
    if (!read(object, of_grad, out, &sizes, &strides) || 2 * out->dim > room)
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
    if (!read(old->object, old->of_grad, &now, &sizes, &strides) || now.dim != old->dim)
        return 0;
    if (now.dim < 0)
        return 1;
    if (now.dtype != old->dtype || now.device_type != old->device_type ||
        now.device_index != old->device_index || now.requires_grad != old->requires_grad ||
        now.conj != old->conj || now.neg != old->neg || now.inference != old->inference)
        return 0;
    for (i = 0; i < old->dim; i++)
        differ |= (sizes[i] ^ old->numbers[i]) | (strides[i] ^ old->numbers[old->dim + i]);
    return differ == 0;
}

/* 1 when no two of the tensors are one. */
static int distinct(const struct table *table)
{
    number i, changed = 0;
    word at, found;
    for (i = 0; i < table->tensors; i++) {
        const struct tensor *each = (const struct tensor *)table->tensor[i];
        found = each->dim < 0 ? 0 : *(word *)tensor_of(each->object, each->of_grad);
        changed |= found != table->impl[i];
        table->impl[i] = found;
    }
    if (!changed)
        return 1;
    for (at = 0; at <= table->mask; at++)
        table->set[at] = 0;
    for (i = 0; i < table->tensors; i++) {
        if (!(found = table->impl[i]))
            continue;
        at = (found >> 4) * 0x9E3779B97F4A7C15ull >> 32 & table->mask;
        while (table->set[at] && table->set[at] != found)
            at = (at + 1) & table->mask;
        if (table->set[at]) {
            table->impl[0] = 1; /* no address: asked again next time */
            return 0;
        }
        table->set[at] = found;
    }
    return 1;
}

/* 1 when every word and every tensor is as it was. Words come first and in the order in which they
   were found: a word lies in an object that the words before it show to be alive. */
static int holds(const struct table *table)
{
    number i;
    for (i = 0; i < table->entries; i++)
        if (*table->entry[i].at != table->entry[i].want)
            return 0;
    for (i = 0; i < table->tensors; i++)
        if (!same((const struct tensor *)table->tensor[i]))
            return 0;
    return !table->impl || distinct(table);
}

/* A function of Python's: that of the table that is the content of the bytes that it is made with. */
void *unchanged(const char *self, void *nothing)
{
    return bool_of(holds((const struct table *)(self + content)));
}

static int is_plain(const char *object)
{
    word class = ((const word *)object)[1];
    return class == plain || class == parameter;
}

/* A function of Python's. Where the elements of each tensor begin, then their versions, eight bytes
   each, then a byte of what else there is to each: 1 when it requires a gradient, 2 when it is a
   view, 4 a leaf, 8 an inference tensor, whose version is 0. Nothing at all for tensors of other
   classes, and where that cannot be read. */
void *look(void *self, char *const *objects, number count)
{
    number i;
    int found;
    char *out = bytes_of(0, 17 * count), *flags;
    word *starts, *versions;
    if (!out)
        return 0;
    starts = (word *)(out + content);
    versions = starts + count;
    flags = (char *)(versions + count);
    for (i = 0; i < count; i++) {
        void *tensor = objects[i] + offset;
        if (!is_plain(objects[i]) || get_layout(tensor, &found) || found != strided ||
            get_data_ptr(tensor, (void **)&starts[i])) {
            drop(out);
            return bytes_of(0, 0);
        }
        found = is_inference(tensor);
        versions[i] = found ? 0 : (word)version(tensor);
        flags[i] = (char)(requires_grad(*(void **)tensor) | is_view(tensor) << 1 |
                          is_leaf(tensor) << 2 | found << 3);
    }
    return out;
}

/* Likewise: whether the elements of each tensor lie in memory as they are; False for
   other classes, and other objects than tensors. */
void *in_memory(void *self, char *const *objects, number count)
{
    number i;
    int found;
    for (i = 0; i < count; i++) {
        void *tensor = objects[i] + offset;
        if (!is_plain(objects[i]) || get_layout(tensor, &found) || found != strided ||
            !has_storage(*(void **)tensor) || is_conj(tensor) || is_neg(tensor) || is_zero(tensor))
            return bool_of(0);
    }
    return bool_of(1);
}

/* Likewise: count a write to each tensor; False, and none is, for tensors of other classes or
   without a count. */
void *bump(void *self, char *const *objects, number count)
{
    number i;
    for (i = 0; i < count; i++)
        if (!is_plain(objects[i]) || is_inference(objects[i] + offset))
            return bool_of(0);
    for (i = 0; i < count; i++)
        bump_version(objects[i] + offset);
    return bool_of(1);
}

/* For each of `places` the word of `from` there (its low 32 bits), moved by its high bits but the
   uppermost; those without the uppermost are addresses: which of their low bits are set. */
int gather(const word *from, const number *places, number count, word *out)
{
    number i;
    word bits = 0;
    for (i = 0; i < count; i++) {
        out[i] = from[places[i] & 0xffffffff] + (places[i] >> 32 & 0x7fffffff);
        bits |= places[i] < 0 ? 0 : out[i];
    }
    return (int)(bits & 0xff);
}

/* Whether a range that is written meets another one. `order` is that of the starts at an earlier
   call, and is made that of these: few have moved. */
int overlap(const word *start, const word *extent, number *order, const char *written, number count)
{
    word any_end = 0, written_end = 0, end;
    number i, j, at;
    for (i = 1; i < count; i++) {
        at = order[i];
        for (j = i; j > 0 && start[order[j - 1]] > start[at]; j--)
            order[j] = order[j - 1];
        order[j] = at;
    }
    for (i = 0; i < count; i++) {
        at = order[i];
        if (!extent[at])
            continue;
        if (start[at] < (written[at] ? any_end : written_end))
            return 1;
        end = start[at] + extent[at];
        any_end = end > any_end ? end : any_end;
        if (written[at] && end > written_end)
            written_end = end;
    }
    return 0;
}
