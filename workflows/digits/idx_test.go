package digits

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// idx encodes an IDX file.
func idx(magic uint32, body []byte, dimensions ...uint32) []byte {
	data := binary.BigEndian.AppendUint32(nil, magic)
	for _, d := range dimensions {
		data = binary.BigEndian.AppendUint32(data, d)
	}
	return append(data, body...)
}

func pack(tb testing.TB, data []byte) []byte {
	tb.Helper()
	var packed bytes.Buffer
	w := gzip.NewWriter(&packed)
	if _, err := w.Write(data); err != nil {
		tb.Fatal(err)
	}
	if err := w.Close(); err != nil {
		tb.Fatal(err)
	}
	return packed.Bytes()
}

// writeDir writes files to a new directory.
func writeDir(tb testing.TB, files map[string][]byte) string {
	tb.Helper()
	dir := tb.TempDir()
	for name, data := range files {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
			tb.Fatal(err)
		}
	}
	return dir
}

const (
	trainImages = "train-images-idx3-ubyte"
	trainLabels = "train-labels-idx1-ubyte"
	t10kImages  = "t10k-images-idx3-ubyte"
	t10kLabels  = "t10k-labels-idx1-ubyte"
)

func TestReadDir(t *testing.T) {
	t.Parallel()
	images := idx(magicImages, []byte{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}, 2, 2, 3)
	labels := idx(magicLabels, []byte{7, 0}, 2)
	both := Images{
		Width: 3, Height: 2, Max: 255, Pixels: []byte{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12},
		Labels: []byte{7, 0},
	}
	more := both
	more.Pixels, more.Labels = append(bytes.Clone(both.Pixels), 9, 9, 9, 9, 9, 9), []byte{7, 0, 5}
	for _, test := range []struct {
		name  string
		files map[string][]byte
		want  Images
	}{
		{"plain files are read", map[string][]byte{trainImages: images, trainLabels: labels}, both},
		{"packed files are read", map[string][]byte{
			trainImages + ".gz": pack(t, images),
			trainLabels + ".gz": pack(t, labels),
		}, both},
		{
			"one file may be packed and the other plain",
			map[string][]byte{trainImages + ".gz": pack(t, images), trainLabels: labels},
			both,
		},
		{"the t10k files are appended", map[string][]byte{
			trainImages: images, trainLabels: labels,
			t10kImages:         idx(magicImages, []byte{9, 9, 9, 9, 9, 9}, 1, 2, 3),
			t10kLabels + ".gz": pack(t, idx(magicLabels, []byte{5}, 1)),
		}, more},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			got, err := readDir(t.Context(), writeDir(t, test.files))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestReadDirRefuses(t *testing.T) {
	t.Parallel()
	images := idx(magicImages, []byte{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}, 2, 2, 3)
	labels := idx(magicLabels, []byte{7, 0}, 2)
	for _, test := range []struct {
		name  string
		files map[string][]byte
		want  []string // parts of the error
	}{
		{"an empty directory", nil, []string{
			"no train-images-idx3-ubyte", "put the image file and the label file", "train-labels-idx1-ubyte",
			"plain or packed (.gz)",
		}},
		{"images without labels", map[string][]byte{trainImages: images}, []string{trainLabels, "no such file"}},
		{"labels without images", map[string][]byte{trainLabels: labels}, []string{trainImages, "no such file"}},
		{
			"t10k images without labels",
			map[string][]byte{trainImages: images, trainLabels: labels, t10kImages: images},
			[]string{t10kLabels, "no such file"},
		},
		{
			"t10k images of another size",
			map[string][]byte{
				trainImages: images, trainLabels: labels,
				t10kImages: idx(magicImages, []byte{1, 2, 3, 4, 5, 6}, 1, 3, 2), t10kLabels: idx(magicLabels, []byte{1}, 1),
			},
			[]string{"3x2", "2x3", "must have one size"},
		},
		{
			"an image file with the magic number of labels",
			map[string][]byte{trainImages: labels, trainLabels: labels},
			[]string{trainImages, "the file ends in its header: expected 16 bytes, got 10"},
		},
		{
			"a label file with the magic number of images",
			map[string][]byte{trainImages: images, trainLabels: images},
			[]string{trainLabels, "magic number is 0x00000803, expected 0x00000801"},
		},
		{
			"a header that is cut off",
			map[string][]byte{trainImages: images[:9], trainLabels: labels},
			[]string{trainImages, "expected 16 bytes, got 9"},
		},
		{
			"an empty file",
			map[string][]byte{trainImages: {}, trainLabels: labels},
			[]string{trainImages, "expected 16 bytes, got 0"},
		},
		{
			"a truncated image file",
			map[string][]byte{trainImages: images[:20], trainLabels: labels},
			[]string{trainImages, "truncated: expected 28 bytes, got 20"},
		},
		{
			"a truncated label file",
			map[string][]byte{trainImages: images, trainLabels: labels[:9]},
			[]string{trainLabels, "truncated: expected 10 bytes, got 9"},
		},
		{
			"an image file that is too long",
			map[string][]byte{trainImages: append(bytes.Clone(images), 1, 2), trainLabels: labels},
			[]string{trainImages, "too long: expected 28 bytes, got 30"},
		},
		{
			"a packed file that is cut off",
			map[string][]byte{trainImages + ".gz": pack(t, images)[:24], trainLabels: labels},
			[]string{trainImages + ".gz", "expected"},
		},
		{
			"a file that is not packed as its name says",
			map[string][]byte{trainImages + ".gz": images, trainLabels: labels},
			[]string{trainImages + ".gz", "gzip: invalid header"},
		},
		{
			"a header that promises more than memory holds",
			map[string][]byte{trainImages: idx(magicImages, nil, 1<<32-1, 256, 256), trainLabels: labels},
			[]string{trainImages, "the header promises 281474976645120 bytes"},
		},
		{
			"no images",
			map[string][]byte{trainImages: idx(magicImages, nil, 0, 28, 28), trainLabels: idx(magicLabels, nil, 0)},
			[]string{trainImages, "the header promises 0 bytes"},
		},
		{
			"images without width",
			map[string][]byte{trainImages: idx(magicImages, nil, 2, 2, 0), trainLabels: labels},
			[]string{trainImages, "images are 0x2: width and height must be 1 to 256"},
		},
		{
			"images that are too high",
			map[string][]byte{trainImages: idx(magicImages, nil, 2, 257, 1), trainLabels: labels},
			[]string{trainImages, "images are 1x257"},
		},
		{
			"a label that is no digit",
			map[string][]byte{trainImages: images, trainLabels: idx(magicLabels, []byte{7, 10}, 2)},
			[]string{trainLabels, "label 1 is 10: labels must be 0 to 9"},
		},
		{
			"more labels than images",
			map[string][]byte{trainImages: images, trainLabels: idx(magicLabels, []byte{7, 1, 2}, 3)},
			[]string{"2 images", "3 labels", "one data set"},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			_, err := readDir(t.Context(), writeDir(t, test.files))
			if err == nil || !isWrong(t.Context(), err) {
				t.Fatalf("got %v, want an error that no other attempt can mend", err)
			}
			for _, part := range test.want {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("got %q, want it to say %q", err, part)
				}
			}
		})
	}
}

func TestReadDirRefusesADirectoryThatIsMissing(t *testing.T) {
	t.Parallel()
	dir := writeDir(t, map[string][]byte{"file": nil})
	for missing, want := range map[string]string{
		"nowhere": "there is no such directory on this host",
		"file":    "it is a file",
	} {
		missing = filepath.Join(dir, missing)
		_, err := readDir(t.Context(), missing)
		if !errors.Is(err, errNoPair) || !strings.Contains(err.Error(), missing+": "+want) || !isWrong(t.Context(), err) {
			t.Errorf("got %v, want an error that says %s: %s", err, missing, want)
		}
	}
}

func TestWhatMayPassIsReadAgain(t *testing.T) {
	t.Parallel()
	failing := &fs.PathError{Op: "read", Path: "train-images-idx3-ubyte", Err: syscall.EIO}
	if isWrong(t.Context(), fmt.Errorf("read /data: %w", failing)) {
		t.Error("a disk that fails is taken for a wrong input")
	}
	ended, end := context.WithCancel(t.Context())
	end()
	if _, err := readDir(ended, writeDir(t, nil)); isWrong(ended, err) {
		t.Errorf("an attempt that was stopped is taken for a wrong input: %v", err)
	}
}

func FuzzReadIDXImages(f *testing.F) {
	f.Add(idx(magicImages, []byte{1, 2, 3, 4, 5, 6}, 1, 2, 3))
	f.Add(idx(magicImages, nil, 1<<31, 256, 256))
	f.Add(idx(magicLabels, []byte{1}, 1))
	f.Fuzz(func(t *testing.T, data []byte) {
		m, err := readIDXImages(bytes.NewReader(data))
		if err != nil {
			return
		}
		if got, want := len(m.Pixels), len(data)-16; got != want || got%(m.Width*m.Height) != 0 {
			t.Errorf("got %d pixels of %dx%d images from %d bytes", got, m.Width, m.Height, len(data))
		}
	})
}

func FuzzReadIDXLabels(f *testing.F) {
	f.Add(idx(magicLabels, []byte{1, 9}, 2))
	f.Add(idx(magicLabels, []byte{1, 10}, 2))
	f.Fuzz(func(t *testing.T, data []byte) {
		labels, err := readIDXLabels(bytes.NewReader(data))
		if err != nil {
			return
		}
		if len(labels) != len(data)-8 || checkLabels(labels) != nil {
			t.Errorf("got labels %v from %d bytes", labels, len(data))
		}
	})
}
