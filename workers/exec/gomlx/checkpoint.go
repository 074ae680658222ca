package gomlx

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"slices"

	"github.com/spillway-ml/spillway/workers/exec/state"
)

// saved is the form of files that Pipeline.Write makes: the arrays of the unsplit model by their names, without
// prefixes.
const saved = "spillway-gomlx-1"

// Export copies all arrays; wait writes them.
func (s *stage) Export(ctx context.Context, path string) (wait func() error, err error) {
	if err := ctx.Err(); err != nil {
		return nil, s.failed("export", err)
	}
	var tensors []state.Tensor
	for _, w := range s.weights {
		tensors = append(tensors, encode("parameter/"+w.name, w.shape, w.value.floats()))
		for i, slot := range s.optimizer.slots {
			tensors = append(tensors, encode("optimizer/"+slot+"/"+w.name, w.shape, w.slots[i]))
		}
		if s.optimizer.counts() {
			count := binary.LittleEndian.AppendUint64(nil, uint64(s.steps))
			tensors = append(tensors, state.Tensor{Name: stepName(w.array), Type: "I64", Shape: []int{}, Data: count})
		}
	}
	for _, b := range s.buffers {
		tensors = append(tensors, encode("buffer/"+b.name, b.shape, b.value))
	}
	metadata := map[string]string{state.FormatKey: state.Part, state.ModelKey: s.digest}
	return func() error { return s.failed("export", state.Write(path, metadata, tensors)) }, nil
}

func stepName(a array) string { return "optimizer/step/" + a.name }

// Import replaces all arrays, or none where it fails. It forgets gradients, and micro-batches between their passes.
func (s *stage) Import(ctx context.Context, paths []string) error {
	return s.failed("import", s.replace(ctx, paths))
}

func (s *stage) replace(ctx context.Context, paths []string) (err error) {
	found, err := openAll(paths, s.digest)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, found.close()) }()
	var into, values [][]float32
	steps := s.steps
	read := func(name string, shape []int, target []float32) {
		var v []float32
		if err == nil {
			v, err = found.floats(name, shape)
		}
		into, values = append(into, target), append(values, v)
	}
	for _, w := range s.weights {
		if err := ctx.Err(); err != nil {
			return err
		}
		read("parameter/"+w.name, w.shape, w.value.floats())
		for i, slot := range s.optimizer.slots {
			read("optimizer/"+slot+"/"+w.name, w.shape, w.slots[i])
		}
		if s.optimizer.counts() && err == nil {
			steps, err = found.count(stepName(w.array))
		}
	}
	for _, b := range s.buffers {
		read("buffer/"+b.name, b.shape, b.value)
	}
	if err != nil {
		return err
	}
	for i := range into {
		copy(into[i], values[i])
	}
	s.forget()
	s.steps = steps
	return nil
}

// forget drops what a step that was cut off has left.
func (s *stage) forget() {
	for _, w := range s.weights {
		clear(w.gradient.floats())
	}
	clear(s.flights)
	s.loss = 0
}

// files are those of one split.
type files []*state.File

func openAll(paths []string, digest string) (found files, err error) {
	for _, path := range paths {
		f, err := state.Open(path)
		if err != nil {
			return nil, errors.Join(err, found.close())
		}
		found = append(found, f)
		if metadata := f.Metadata(); metadata[state.FormatKey] != state.Part || metadata[state.ModelKey] != digest {
			err := fmt.Errorf("%s is of format %q and of the model %.12q; want %q and %.12q: only checkpoints of the "+
				"same model fit",
				path, metadata[state.FormatKey], metadata[state.ModelKey], state.Part, digest)
			return nil, errors.Join(err, found.close())
		}
	}
	return found, nil
}

func (f files) close() error {
	var all error
	for _, file := range f {
		all = errors.Join(all, file.Close())
	}
	return all
}

// read looks a tensor up in all files.
func (f files) read(name string) (state.Tensor, error) {
	for _, file := range f {
		t, err := file.Read(name)
		if !errors.Is(err, fs.ErrNotExist) {
			return t, err
		}
	}
	return state.Tensor{}, fmt.Errorf("none of %d files has %q; give those of all parts, trained with the same "+
		"optimizer: %w", len(f), name, fs.ErrNotExist)
}

func (f files) floats(name string, shape []int) ([]float32, error) {
	t, err := f.read(name)
	if err != nil {
		return nil, err
	}
	return decode(t, shape)
}

// count reads how many updates a parameter has had; torch.optim keeps that as a float.
func (f files) count(name string) (int64, error) {
	t, err := f.read(name)
	if err != nil {
		return 0, err
	}
	var count float64
	switch {
	case t.Type == "I64" && len(t.Data) == 8:
		count = float64(int64(binary.LittleEndian.Uint64(t.Data)))
	case t.Type == "F32" && len(t.Data) == 4:
		count = float64(math.Float32frombits(binary.LittleEndian.Uint32(t.Data)))
	case t.Type == "F64" && len(t.Data) == 8:
		count = math.Float64frombits(binary.LittleEndian.Uint64(t.Data))
	default:
		return 0, fmt.Errorf("%q is %s of shape %v; want a number", name, t.Type, t.Shape)
	}
	if !(count >= 0 && count < 1<<53 && count == math.Trunc(count)) {
		return 0, fmt.Errorf("%q is %v; want a count", name, count)
	}
	return int64(count), nil
}

// encode copies an array.
func encode(name string, shape []int, values []float32) state.Tensor {
	data := make([]byte, 4*len(values))
	for i, v := range values {
		binary.LittleEndian.PutUint32(data[4*i:], math.Float32bits(v))
	}
	return state.Tensor{Name: name, Type: "F32", Shape: append([]int{}, shape...), Data: data}
}

func decode(t state.Tensor, shape []int) ([]float32, error) {
	if t.Type != "F32" || !slices.Equal(t.Shape, shape) {
		return nil, fmt.Errorf("%q is %s of shape %v; want F32 of shape %v", t.Name, t.Type, t.Shape, shape)
	}
	values := make([]float32, len(t.Data)/4)
	for i := range values {
		values[i] = math.Float32frombits(binary.LittleEndian.Uint32(t.Data[4*i:]))
	}
	return values, nil
}

// Write makes one file of the parameters and buffers of exported parts, which [Open] reads.
func (p *pipeline) Write(ctx context.Context, parts []string, path string) error {
	if err := writeModel(ctx, p.model, parts, path); err != nil {
		return fmt.Errorf("write model %q: %w", p.model.Name, err)
	}
	return nil
}

func writeModel(ctx context.Context, model Model, parts []string, path string) (err error) {
	digest := model.digest()
	found, err := openAll(parts, digest)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, found.close()) }()
	var tensors []state.Tensor
	for _, a := range arrays(model.Blocks) {
		if err := ctx.Err(); err != nil {
			return err
		}
		kind := "parameter/"
		if a.buffer {
			kind = "buffer/"
		}
		t, err := found.read(kind + a.name)
		if err != nil {
			return err
		}
		t.Name = a.name
		tensors = append(tensors, t)
	}
	return state.Write(path, map[string]string{state.FormatKey: saved, state.ModelKey: digest}, tensors)
}
