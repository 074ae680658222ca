package gomlx_test

import (
	"encoding/binary"
	"maps"
	"math"
	"path/filepath"
	"slices"
	"strconv"
	"testing"

	"github.com/spillway-ml/spillway/workers/exec"
	"github.com/spillway-ml/spillway/workers/exec/state"
)

// export returns the arrays of all stages by their names in files.
func export(tb testing.TB, stages []exec.Stage) map[string]state.Tensor {
	tb.Helper()
	all := map[string]state.Tensor{}
	for _, path := range exportFiles(tb, stages) {
		file, err := state.Open(path)
		if err != nil {
			tb.Fatal(err)
		}
		for _, name := range file.Names() {
			if all[name], err = file.Read(name); err != nil {
				tb.Fatal(err)
			}
		}
		if err := file.Close(); err != nil {
			tb.Fatal(err)
		}
	}
	return all
}

func exportFiles(tb testing.TB, stages []exec.Stage) []string {
	tb.Helper()
	var paths []string
	folder := tb.TempDir()
	for i, s := range stages {
		path := filepath.Join(folder, strconv.Itoa(i))
		wait, err := s.Export(tb.Context(), path)
		if err != nil {
			tb.Fatal(err)
		}
		if err := wait(); err != nil {
			tb.Fatal(err)
		}
		paths = append(paths, path)
	}
	return paths
}

// importAll puts arrays into all stages.
func importAll(tb testing.TB, pipeline exec.Pipeline, tensors map[string]state.Tensor) {
	tb.Helper()
	path := filepath.Join(tb.TempDir(), "all")
	var list []state.Tensor
	for _, name := range slices.Sorted(maps.Keys(tensors)) {
		list = append(list, tensors[name])
	}
	metadata := map[string]string{state.FormatKey: state.Part, state.ModelKey: pipeline.Data().Model}
	if err := state.Write(path, metadata, list); err != nil {
		tb.Fatal(err)
	}
	for _, s := range pipeline.Stages() {
		if err := s.Import(tb.Context(), []string{path}); err != nil {
			tb.Fatal(err)
		}
	}
}

// moved returns the arrays with one number moved.
func moved(tensors map[string]state.Tensor, name string, i int, by float32) map[string]state.Tensor {
	changed := maps.Clone(tensors)
	one := changed[name]
	one.Data = slices.Clone(one.Data)
	at := one.Data[4*i:]
	binary.LittleEndian.PutUint32(at, math.Float32bits(math.Float32frombits(binary.LittleEndian.Uint32(at))+by))
	changed[name] = one
	return changed
}
