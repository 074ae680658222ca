// Package state keeps tensors by name in safetensors files, the form in which a stage exports what it has learnt.
//
// A file is a little-endian 64-bit length, a JSON header of that length which gives each tensor's type, shape and
// place, and the data, little-endian and without gaps (https://huggingface.co/docs/safetensors). In files of stages a
// tensor is called "parameter/NAME", "buffer/NAME" or "optimizer/SLOT/NAME"; NAME is that of the unsplit model and SLOT
// that of torch.optim ("exp_avg", "momentum_buffer", "step"), so that any split reads the files of any other. The
// metadata has "format", which is [Part], and "model", the digest of the model.
package state

import (
	"errors"
	"fmt"
	"math"
)

// Part is what the metadata of a stage's file have as "format".
const Part = "spillway-part-1"

// Metadata of a stage's file.
const (
	FormatKey = "format" // its value is Part
	ModelKey  = "model"  // its value is the digest of the model
)

// ErrFormat is wrapped by the errors of files that are cut short or malformed, and of tensors that no file can hold.
var ErrFormat = errors.New("not a file of tensors")

// mostHeader bounds the header, in bytes; a name and its place take about a hundred.
const mostHeader = 64 << 20

// reserved is the header's key that is no tensor.
const reserved = "__metadata__"

// Tensor is an array of numbers with a name.
type Tensor struct {
	// Name is unique in a file and not empty.
	Name string
	// Type is F32, F64, BF16, F16, C64, I64, I32, I16, I8, U64, U32, U16, U8, BOOL, or F8_E4M3, F8_E5M2, F8_E4M3FNUZ,
	// F8_E5M2FNUZ and F8_E8M0, of eight bits.
	Type string
	// Shape has the sizes of the dimensions, from 0; none is a single number.
	Shape []int
	// Data holds the numbers in row-major order, little-endian.
	Data []byte
}

// width returns how many bytes a number takes.
func width(kind string) (int64, error) {
	switch kind {
	case "F64", "I64", "U64", "C64":
		return 8, nil
	case "F32", "I32", "U32":
		return 4, nil
	case "F16", "BF16", "I16", "U16":
		return 2, nil
	case "I8", "U8", "BOOL", "F8_E4M3", "F8_E5M2", "F8_E4M3FNUZ", "F8_E5M2FNUZ", "F8_E8M0":
		return 1, nil
	default:
		return 0, fmt.Errorf("%w: type %q; want F32, F64, BF16, F16, C64, I64, I32, I16, I8, U64, U32, U16, U8, BOOL or "+
			"one of eight bits (F8_...)", ErrFormat, kind)
	}
}

// size returns how many bytes the numbers of a tensor take.
func size(kind string, shape []int) (int64, error) {
	bytes, err := width(kind)
	if err != nil {
		return 0, err
	}
	empty := false
	for _, n := range shape {
		if n < 0 {
			return 0, fmt.Errorf("%w: shape %v has a negative size", ErrFormat, shape)
		}
		empty = empty || n == 0
	}
	if empty {
		return 0, nil
	}
	for _, n := range shape {
		if int64(n) > math.MaxInt64/bytes {
			return 0, fmt.Errorf("%w: shape %v has too many numbers", ErrFormat, shape)
		}
		bytes *= int64(n)
	}
	return bytes, nil
}
