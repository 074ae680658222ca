package digits

import (
	"bufio"
	"compress/gzip"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// The magic numbers of IDX files of unsigned bytes with three and with one dimension
// (http://yann.lecun.com/exdb/mnist/).
const (
	magicImages = 0x00000803
	magicLabels = 0x00000801
)

// maxPixels bounds what one file may hold: 1 GiB, about 1.3 million images of 28x28.
const maxPixels = 1 << 30

// readDir reads a directory in the format of MNIST: train-images-idx3-ubyte and train-labels-idx1-ubyte, then
// t10k-images-idx3-ubyte and t10k-labels-idx1-ubyte where they exist. Each file may be packed, with .gz at the end of
// its name.
func readDir(ctx context.Context, dir string) (Images, error) {
	switch info, err := os.Stat(dir); {
	case errors.Is(err, fs.ErrNotExist):
		return Images{}, fmt.Errorf("read %s: there is no such directory on this host: make it, and %w", dir, errNoPair)
	case err != nil:
		return Images{}, fmt.Errorf("read %s: %w", dir, err)
	case !info.IsDir():
		return Images{}, fmt.Errorf("read %s: it is a file: name the directory that it is in, and %w", dir, errNoPair)
	}
	all, err := readPair(ctx, dir, "train")
	if err != nil {
		return Images{}, err
	}
	more, err := readPair(ctx, dir, "t10k")
	if errors.Is(err, errNoPair) {
		return all, nil
	}
	if err != nil {
		return Images{}, err
	}
	if more.Width != all.Width || more.Height != all.Height {
		return Images{}, fmt.Errorf("read %s: the train images are %dx%d and the t10k images %dx%d: they must have one size",
			dir, all.Width, all.Height, more.Width, more.Height)
	}
	all.Pixels = append(all.Pixels, more.Pixels...)
	all.Labels = append(all.Labels, more.Labels...)
	return all, nil
}

// errNoPair is wrapped when a directory has neither the image file nor the label file of a pair.
var errNoPair = errors.New("put the image file and the label file of MNIST's format there: train-images-idx3-ubyte " +
	"and train-labels-idx1-ubyte, each plain or packed (.gz)")

// isWrong reports whether readDir refuses what it was given, so that reading again cannot help; a disk that fails may
// work again.
func isWrong(ctx context.Context, err error) bool {
	if ctx.Err() != nil {
		return false
	}
	_, failed := errors.AsType[*fs.PathError](err)
	return !failed || errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission)
}

// readPair reads the image file and the label file that begin with prefix.
func readPair(ctx context.Context, dir, prefix string) (Images, error) {
	imageName, imageErr := findFile(dir, prefix+"-images-idx3-ubyte")
	labelName, labelErr := findFile(dir, prefix+"-labels-idx1-ubyte")
	if errors.Is(imageErr, fs.ErrNotExist) && errors.Is(labelErr, fs.ErrNotExist) {
		return Images{}, fmt.Errorf("read %s: no %s-images-idx3-ubyte is there: %w", dir, prefix, errNoPair)
	}
	if err := errors.Join(imageErr, labelErr); err != nil {
		return Images{}, fmt.Errorf("read %s: %w", dir, err)
	}
	if err := ctx.Err(); err != nil {
		return Images{}, fmt.Errorf("read %s: %w", dir, err)
	}
	m, err := readFile(imageName, readIDXImages)
	if err != nil {
		return Images{}, err
	}
	if m.Labels, err = readFile(labelName, readIDXLabels); err != nil {
		return Images{}, err
	}
	if images := len(m.Pixels) / (m.Width * m.Height); images != len(m.Labels) {
		return Images{}, fmt.Errorf("read %s: %d images but %s has %d labels: take both files from one data set",
			imageName, images, labelName, len(m.Labels))
	}
	return m, nil
}

// findFile returns the path of name or of name.gz in dir.
func findFile(dir, name string) (string, error) {
	plain := filepath.Join(dir, name)
	if _, err := os.Stat(plain); err == nil {
		return plain, nil
	}
	packed := plain + ".gz"
	if _, err := os.Stat(packed); err == nil || !errors.Is(err, fs.ErrNotExist) {
		return packed, err
	}
	_, err := os.Stat(plain)
	return plain, err
}

// readFile opens a file, unpacks it where its name ends in .gz, and reads it; errors name it.
func readFile[T any](name string, read func(io.Reader) (T, error)) (value T, err error) {
	file, err := os.Open(name)
	if err != nil {
		return value, err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	var r io.Reader = bufio.NewReader(file)
	if strings.HasSuffix(name, ".gz") {
		if r, err = gzip.NewReader(r); err != nil {
			return value, fmt.Errorf("unpack %s: %w", name, err)
		}
	}
	if value, err = read(r); err != nil {
		return value, fmt.Errorf("read %s: %w", name, err)
	}
	return value, nil
}

// readIDXImages reads an image file; the labels are left empty.
func readIDXImages(r io.Reader) (Images, error) {
	header, err := readHeader(r, magicImages, 3)
	if err != nil {
		return Images{}, err
	}
	count, height, width := header[0], header[1], header[2]
	if height < 1 || height > maxSide || width < 1 || width > maxSide {
		return Images{}, fmt.Errorf("images are %dx%d: width and height must be 1 to %d", width, height, maxSide)
	}
	pixels, err := readBody(r, 16, count*height*width)
	if err != nil {
		return Images{}, err
	}
	return Images{Width: int(width), Height: int(height), Max: 255, Pixels: pixels}, nil
}

// readIDXLabels reads a label file.
func readIDXLabels(r io.Reader) ([]byte, error) {
	header, err := readHeader(r, magicLabels, 1)
	if err != nil {
		return nil, err
	}
	labels, err := readBody(r, 8, header[0])
	if err != nil {
		return nil, err
	}
	return labels, checkLabels(labels)
}

// readHeader reads the magic number and as many dimensions; all are big-endian and 32 bits wide.
func readHeader(r io.Reader, magic uint32, dimensions int) ([]int64, error) {
	raw := make([]byte, 4+4*dimensions)
	if n, err := io.ReadFull(r, raw); err != nil {
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return nil, fmt.Errorf("the file ends in its header: expected %d bytes, got %d: fetch it again", len(raw), n)
		}
		return nil, err
	}
	if got := binary.BigEndian.Uint32(raw); got != magic {
		return nil, fmt.Errorf("magic number is %#08x, expected %#08x: this is not the IDX file that its name says", got,
			magic)
	}
	header := make([]int64, dimensions)
	for i := range header {
		header[i] = int64(binary.BigEndian.Uint32(raw[4+4*i:]))
	}
	return header, nil
}

// readBody reads exactly size bytes after a header. It allocates as bytes arrive, so that a header cannot ask for more
// than there is.
func readBody(r io.Reader, header, size int64) ([]byte, error) {
	if size < 1 || size > maxPixels {
		return nil, fmt.Errorf("the header promises %d bytes: expected 1 to %d", size, maxPixels)
	}
	body, err := io.ReadAll(io.LimitReader(r, size))
	if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) {
		return nil, err
	}
	if int64(len(body)) < size {
		return nil, fmt.Errorf("the file is truncated: expected %d bytes, got %d: fetch it again", header+size,
			header+int64(len(body)))
	}
	more, err := io.Copy(io.Discard, io.LimitReader(r, maxPixels))
	if err != nil {
		return nil, err
	}
	if more > 0 {
		return nil, fmt.Errorf("the file is too long: expected %d bytes, got %d: fetch it again", header+size,
			header+size+more)
	}
	return body, nil
}
