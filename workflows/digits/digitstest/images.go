// Package digitstest makes small sets of images that the sample pipeline reads in seconds.
package digitstest

import (
	"encoding/binary"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
)

// Images writes count images of 8x8 pixels in the format of MNIST and returns their directory. Each shows its label as
// a bar in some noise; the same count gives the same images.
func Images(tb testing.TB, count int) (dir string) {
	tb.Helper()
	const side = 8
	header := func(numbers ...uint32) (encoded []byte) {
		for _, number := range numbers {
			encoded = binary.BigEndian.AppendUint32(encoded, number)
		}
		return encoded
	}
	images, labels := header(0x803, uint32(count), side, side), header(0x801, uint32(count))
	r := rand.New(rand.NewPCG(1, 2))
	for range count {
		label := r.IntN(10)
		labels = append(labels, byte(label))
		for pixel := range side * side {
			value := r.IntN(60)
			if row, column := pixel/side, pixel%side; label < side && row == label || label >= side && column == label-side {
				value += 180
			}
			images = append(images, byte(value))
		}
	}
	dir = tb.TempDir()
	for name, content := range map[string][]byte{"train-images-idx3-ubyte": images, "train-labels-idx1-ubyte": labels} {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
			tb.Fatal(err)
		}
	}
	return dir
}
