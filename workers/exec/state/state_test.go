package state_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/spillway-ml/spillway/workers/exec/state"
)

func Example() {
	directory, err := os.MkdirTemp("", "state")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = os.RemoveAll(directory) }()
	path := filepath.Join(directory, "part")
	weight := state.Tensor{Name: "parameter/weight", Type: "U8", Shape: []int{1, 2}, Data: []byte{3, 4}}
	if err := state.Write(path, map[string]string{state.FormatKey: state.Part}, []state.Tensor{weight}); err != nil {
		fmt.Println(err)
		return
	}
	file, err := state.Open(path)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(file.Metadata(), file.Names())
	fmt.Println(file.Read("parameter/weight"))
	fmt.Println(file.Close())
	// Output:
	// map[format:spillway-part-1] [parameter/weight]
	// {parameter/weight U8 [1 2] [3 4]} <nil>
	// <nil>
}

var widths = map[string]int{
	"F32": 4, "F64": 8, "BF16": 2, "F16": 2, "C64": 8, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1,
	"U64": 8, "U32": 4, "U16": 2, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E4M3FNUZ": 1, "F8_E5M2FNUZ": 1, "F8_E8M0": 1,
}

func TestWhatIsWrittenIsRead(t *testing.T) {
	t.Parallel()
	directory := t.TempDir()
	rapid.Check(t, func(t *rapid.T) {
		kinds := rapid.SampledFrom(slices.Sorted(maps.Keys(widths)))
		var tensors []state.Tensor
		var names []string
		for _, name := range rapid.SliceOfNDistinct(rapid.StringN(1, 20, -1), 0, 6, rapid.ID[string]).Draw(t, "names") {
			tensor := state.Tensor{
				Name: name, Type: kinds.Draw(t, "type"),
				Shape: rapid.SliceOfN(rapid.IntRange(0, 4), 0, 3).Draw(t, "shape"),
			}
			n := widths[tensor.Type]
			for _, d := range tensor.Shape {
				n *= d
			}
			tensor.Data = rapid.SliceOfN(rapid.Byte(), n, n).Draw(t, "data")
			tensors, names = append(tensors, tensor), append(names, name)
		}
		metadata := rapid.MapOf(rapid.String(), rapid.String()).Draw(t, "metadata")
		path := filepath.Join(directory, "part")
		if err := state.Write(path, metadata, tensors); err != nil {
			t.Fatal(err)
		}
		file, err := state.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = file.Close() }()
		if diff := cmp.Diff(metadata, file.Metadata()); diff != "" {
			t.Fatal(diff)
		}
		got := map[string]bool{}
		for _, name := range file.Names() {
			got[name] = true
		}
		if len(got) != len(names) {
			t.Fatalf("names %q, want %q", file.Names(), names)
		}
		for _, want := range tensors {
			read, err := file.Read(want.Name)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, read); diff != "" {
				t.Fatal(diff)
			}
		}
	})
	if left, err := filepath.Glob(filepath.Join(directory, "*.part")); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

func TestATensorThatIsNotThereDoesNotExist(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "empty")
	if err := state.Write(path, nil, nil); err != nil {
		t.Fatal(err)
	}
	file, err := state.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	if _, err := file.Read("nothing"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("got %v, want %v", err, fs.ErrNotExist)
	}
}

func TestTensorsThatNoFileCanHoldAreRefused(t *testing.T) {
	t.Parallel()
	one := state.Tensor{Name: "a", Type: "U8", Shape: []int{1}, Data: []byte{1}}
	for name, tensors := range map[string][]state.Tensor{
		"no name":        {{Type: "U8", Shape: []int{1}, Data: []byte{1}}},
		"reserved name":  {{Name: "__metadata__", Type: "U8", Shape: []int{1}, Data: []byte{1}}},
		"no text":        {{Name: "\xff", Type: "U8", Shape: []int{1}, Data: []byte{1}}},
		"same name":      {one, one},
		"unknown type":   {{Name: "a", Type: "F8", Shape: []int{1}, Data: []byte{1}}},
		"too few bytes":  {{Name: "a", Type: "F32", Shape: []int{2}, Data: []byte{1}}},
		"negative shape": {{Name: "a", Type: "U8", Shape: []int{-1, -1}, Data: []byte{1}}},
		"huge shape":     {{Name: "a", Type: "F64", Shape: []int{1 << 62, 4}, Data: []byte{}}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "part")
			if err := state.Write(path, nil, tensors); !errors.Is(err, state.ErrFormat) {
				t.Errorf("got %v, want %v", err, state.ErrFormat)
			}
			if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("a file is there: %v", err)
			}
		})
	}
}

// raw is a file with this header and data.
func raw(head, data string) string {
	var prefix [8]byte
	binary.LittleEndian.PutUint64(prefix[:], uint64(len(head)))
	return string(prefix[:]) + head + data
}

func TestMalformedFilesAreRefusedWithWhatIsWrong(t *testing.T) {
	t.Parallel()
	const a = `"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}`
	for name, test := range map[string]struct{ content, want string }{
		"nothing":             {"", "cut short"},
		"no header":           {raw(`{`, "")[:8], "cut short"},
		"huge header":         {"\xff\xff\xff\xff\xff\xff\xff\xff{}", "at most"},
		"no JSON":             {raw("hello", ""), "JSON"},
		"list":                {raw("[]", ""), "JSON"},
		"unfinished":          {raw("{"+a, "xy"), "header"},
		"two values":          {raw("{} {}", ""), "after its end"},
		"cut":                 {raw("{"+a+"}", "x"), "1 of 2 bytes"},
		"long":                {raw("{"+a+"}", "xyz"), "1 bytes follow"},
		"name twice":          {raw("{"+a+","+a+"}", "xy"), "twice"},
		"metadata twice":      {raw(`{"__metadata__":{},"__metadata__":{}}`, ""), "twice"},
		"metadata of numbers": {raw(`{"__metadata__":{"a":1}}`, ""), "__metadata__"},
		"overlap":             {raw(`{`+a+`,"b":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}}`, "xyz"), "begins at 1"},
		"gap":                 {raw(`{"b":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}}`, "xyz"), "begins at 1"},
		"wrong size":          {raw(`{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,2]}}`, "xy"), "8 bytes"},
		"negative place":      {raw(`{"a":{"dtype":"U8","shape":[2],"data_offsets":[-2,0]}}`, "xy"), "from -2"},
		"no shape":            {raw(`{"a":{"dtype":"U8","data_offsets":[0,1]}}`, "x"), "shape"},
		"null":                {raw(`{"a":null}`, ""), "shape"},
		"broken number":       {raw(`{"a":{"dtype":"U8","shape":[1.5],"data_offsets":[0,1]}}`, "x"), "number"},
		"overflow": {
			raw(`{"a":{"dtype":"U8","shape":[4294967296,4294967296,4],"data_offsets":[0,0]}}`, ""),
			"too many",
		},
		"no name": {raw(`{"":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}`, ""), "name"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "part")
			if err := os.WriteFile(path, []byte(test.content), 0o600); err != nil {
				t.Fatal(err)
			}
			_, err := state.Open(path)
			if !errors.Is(err, state.ErrFormat) || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want %v with %q", err, state.ErrFormat, test.want)
			}
		})
	}
}

func TestADirectoryIsNoFileOfTensors(t *testing.T) {
	t.Parallel()
	if _, err := state.Open(t.TempDir()); !errors.Is(err, state.ErrFormat) {
		t.Errorf("got %v, want %v", err, state.ErrFormat)
	}
}

func TestAttackAPlantedLinkLeadsNoTensorsAway(t *testing.T) {
	t.Parallel()
	directory, precious := t.TempDir(), filepath.Join(t.TempDir(), "precious")
	if err := os.WriteFile(precious, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(directory, "model.safetensors")
	for _, link := range []string{path, path + ".tmp"} {
		if err := os.Symlink(precious, link); err != nil {
			t.Fatal(err)
		}
	}
	if err := state.Write(path, nil, nil); err != nil {
		t.Fatal(err)
	}
	if text, err := os.ReadFile(precious); err != nil || string(text) != "precious" {
		t.Errorf("the file of another is %.40q, %v", text, err)
	}
	if info, err := os.Lstat(path); err != nil || !info.Mode().IsRegular() {
		t.Errorf("what was written is %v, %v", info, err)
	}
}
