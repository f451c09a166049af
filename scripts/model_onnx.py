"""Reads the weights of an ONNX file without the onnx package.

Owns: a protobuf walker, just enough of ModelProto to list nodes and initializers, and the
dequantised CLIP image tower out of an int8 file made by dynamic quantisation.
Refuses: external data, data types other than float32, int8, uint8 and int64."""
import numpy as np

FLOAT, UINT8, INT8, INT64 = 1, 2, 3, 7


class OnnxError(ValueError):
    pass


def varint(b, i):
    x = shift = 0
    while True:
        if i >= len(b) or shift > 63:
            raise OnnxError("truncated number in the onnx file")
        c = b[i]
        i += 1
        x |= (c & 127) << shift
        if c < 128:
            return x, i
        shift += 7


def fields(b):
    """Yields (field number, wire type, value) of one message; bytes fields as memoryviews."""
    i = 0
    while i < len(b):
        key, i = varint(b, i)
        num, wire = key >> 3, key & 7
        if wire == 0:
            v, i = varint(b, i)
        elif wire in (1, 5):
            n = 8 if wire == 1 else 4
            v, i = b[i:i + n], i + n
        elif wire == 2:
            n, i = varint(b, i)
            v, i = b[i:i + n], i + n
        else:
            raise OnnxError("wire type %d in the onnx file" % wire)
        if i > len(b):
            raise OnnxError("truncated field in the onnx file")
        yield num, wire, v


def signed(x):
    return x - (1 << 64) if x >> 63 else x


def numbers(wire, v):
    """A repeated varint field, packed or not."""
    if wire == 0:
        return [signed(v)]
    out, i = [], 0
    while i < len(v):
        x, i = varint(v, i)
        out.append(signed(x))
    return out


def tensor(b):
    """TensorProto -> (name, array)."""
    name, dims, dtype, raw, floats, ints = "", [], 0, None, [], []
    for num, wire, v in fields(b):
        if num == 1:
            dims += numbers(wire, v)
        elif num == 2:
            dtype = v
        elif num == 4:
            floats.append(np.frombuffer(v, "<f4"))
        elif num == 5:
            ints += numbers(wire, v)
        elif num == 8:
            name = bytes(v).decode()
        elif num == 9:
            raw = v
    kinds = {FLOAT: "<f4", UINT8: "u1", INT8: "i1", INT64: "<i8"}
    if dtype not in kinds:
        raise OnnxError("data type %d of %s" % (dtype, name))
    if raw is not None:
        a = np.frombuffer(raw, kinds[dtype])
    elif floats:
        a = np.concatenate(floats)
    else:
        a = np.array(ints, kinds[dtype])
    if a.size != int(np.prod(dims)):
        raise OnnxError("%s has %d numbers, its shape says %s" % (name, a.size, dims))
    return name, a.reshape(dims)


def read(data):
    """Onnx bytes -> (nodes as (op, name, inputs), initializers by name)."""
    nodes, inits = [], {}
    for num, wire, graph in fields(memoryview(data)):
        if num != 7:
            continue
        for gnum, _, v in fields(graph):
            if gnum == 1:
                op, name, inputs = "", "", []
                for n, _, x in fields(v):
                    if n == 1:
                        inputs.append(bytes(x).decode())
                    elif n == 3:
                        name = bytes(x).decode()
                    elif n == 4:
                        op = bytes(x).decode()
                nodes.append((op, name, inputs))
            elif gnum == 5:
                k, a = tensor(v)
                inits[k] = a
    return nodes, inits


def clip_tower(data):
    """The image tower as float32 arrays under Hugging Face names without `vision_model.`;
    linear weights are [out, in]."""
    nodes, inits = read(data)
    out = {k[len("vision_model."):]: np.array(a, np.float32)
           for k, a in inits.items() if k.startswith("vision_model.")}
    for op, name, inputs in nodes:
        if op != "MatMulInteger" or not name.startswith("/vision_model/"):
            continue
        base = inputs[1][:-len("_quantized")]
        q = inits[inputs[1]].astype(np.float32) - inits[inputs[3]].astype(np.float32)
        w = q * inits[base + "_scale"]
        key = name[len("/vision_model/"):-len("/MatMul_quant")].replace("/", ".") + ".weight"
        out[key] = np.ascontiguousarray(w.T)
    need = ["embeddings.class_embedding", "embeddings.patch_embedding.weight",
            "encoder.layers.11.mlp.fc2.weight"]
    for k in need:
        if k not in out:
            raise OnnxError("no %s in the onnx file" % k)
    return out
