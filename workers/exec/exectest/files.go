package exectest

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"

	"github.com/spillway-ml/spillway/workers/exec/state"
)

// tensor returns numbers as a tensor.
func tensor(name string, shape []int, numbers []float64) state.Tensor {
	t := state.Tensor{Name: name, Type: "F64", Shape: slices.Clone(shape), Data: make([]byte, 0, 8*len(numbers))}
	for _, x := range numbers {
		t.Data = binary.LittleEndian.AppendUint64(t.Data, math.Float64bits(x))
	}
	return t
}

// path is what a file calls a parameter or a buffer.
func (p *parameter) path() string {
	if p.buffer {
		return "buffer/" + p.name
	}
	return "parameter/" + p.name
}

// slotNames are what an optimizer of torch keeps.
func slotNames() []string { return []string{"step", "exp_avg", "exp_avg_sq", "momentum_buffer"} }

func slotPath(slot, name string) string { return "optimizer/" + slot + "/" + name }

// Export implements [exec.Stage].
func (s *stage) Export(ctx context.Context, path string) (func() error, error) {
	if err := s.enter(ctx); err != nil {
		return nil, err
	}
	defer s.leave()
	var copied []state.Tensor
	for _, p := range s.parameters() {
		copied = append(copied, tensor(p.path(), p.shape, p.value))
		for _, slot := range slices.Sorted(maps.Keys(p.slots)) {
			shape := p.shape
			if slot == "step" {
				shape = nil
			}
			copied = append(copied, tensor(slotPath(slot, p.name), shape, p.slots[slot]))
		}
	}
	metadata := map[string]string{state.FormatKey: state.Part, state.ModelKey: s.reference.model.digest()}
	return func() error { return state.Write(path, metadata, copied) }, nil
}

// Import implements [exec.Stage]. Nothing is changed where something is missing.
func (s *stage) Import(ctx context.Context, paths []string) error {
	if err := s.enter(ctx); err != nil {
		return err
	}
	defer s.leave()
	found, err := readParts(paths, s.reference.model.digest())
	if err != nil {
		return err
	}
	parameters := s.parameters()
	values, slots := make([][]float64, len(parameters)), make([]map[string][]float64, len(parameters))
	for i, p := range parameters {
		t, err := found.get(p)
		if err != nil {
			return err
		}
		if values[i], err = Numbers(t); err != nil {
			return err
		}
		slots[i] = map[string][]float64{}
		for _, slot := range slotNames() {
			if t, ok := found[slotPath(slot, p.name)]; ok {
				if slots[i][slot], err = Numbers(t); err != nil {
					return err
				}
			}
		}
	}
	for i, p := range parameters {
		p.value, p.slots, p.gradient = values[i], slots[i], nil
	}
	return nil
}

// parts are the tensors of all files.
type parts map[string]state.Tensor

// get returns a parameter's tensor, of its type and shape.
func (p parts) get(of *parameter) (state.Tensor, error) {
	t, ok := p[of.path()]
	if !ok {
		return t, fmt.Errorf("import %s: %w", of.path(), errAbsent)
	}
	if t.Type != "F64" || !slices.Equal(t.Shape, of.shape) {
		return t, fmt.Errorf("import %s: it is %s %v; want F64 %v", of.path(), t.Type, t.Shape, of.shape)
	}
	return t, nil
}

// readParts reads all tensors of exported files, and refuses those of another model.
func readParts(paths []string, model string) (parts, error) {
	all := parts{}
	for _, path := range paths {
		file, err := state.Open(path)
		if err != nil {
			return nil, err
		}
		metadata := file.Metadata()
		if metadata[state.FormatKey] != state.Part || (model != "" && metadata[state.ModelKey] != model) {
			return nil, errors.Join(fmt.Errorf("%s is %q of model %.12q; want %q of %.12q",
				path, metadata[state.FormatKey], metadata[state.ModelKey], state.Part, model), file.Close())
		}
		for _, name := range file.Names() {
			t, err := file.Read(name)
			if err != nil {
				return nil, errors.Join(err, file.Close())
			}
			all[name] = t
		}
		if err := file.Close(); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// Numbers returns the numbers of a tensor of floats or integers.
func Numbers(t state.Tensor) ([]float64, error) {
	var numbers []float64
	for data := t.Data; len(data) > 0; {
		var x float64
		switch t.Type {
		case "F64":
			x, data = math.Float64frombits(binary.LittleEndian.Uint64(data)), data[8:]
		case "I64":
			x, data = float64(int64(binary.LittleEndian.Uint64(data))), data[8:] //nolint:gosec // two's complement
		case "F32":
			x, data = float64(math.Float32frombits(binary.LittleEndian.Uint32(data))), data[4:]
		case "I32":
			x, data = float64(int32(binary.LittleEndian.Uint32(data))), data[4:] //nolint:gosec // two's complement
		default:
			return nil, fmt.Errorf("tensor %q is of type %s; want F32, F64, I32 or I64", t.Name, t.Type)
		}
		numbers = append(numbers, x)
	}
	return numbers, nil
}
