package digits

import (
	"bytes"
	"compress/gzip"
	_ "embed" // the sample images
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"strconv"
)

//go:embed data/digits.csv.gz
var embedded []byte

// maxSide is the largest width or height of a source image in pixels.
const maxSide = 256

// Images are labelled grey images as they were read. The zero value holds none.
type Images struct {
	// Width and Height are the size of every image in pixels, 1 to 256.
	Width, Height int
	// Max is the pixel value of full ink, 1 to 255; 0 is paper.
	Max int
	// Pixels holds the images one after the other, each row by row.
	Pixels []byte
	// Labels holds the digit 0..9 of each image.
	Labels []byte
}

// check refuses images that do not fit together.
func (m Images) check() error {
	switch {
	case m.Width < 1 || m.Width > maxSide || m.Height < 1 || m.Height > maxSide:
		return fmt.Errorf("images are %dx%d: width and height must be 1 to %d", m.Width, m.Height, maxSide)
	case m.Max < 1 || m.Max > 255:
		return fmt.Errorf("full ink is %d: it must be 1 to 255", m.Max)
	case len(m.Pixels) != len(m.Labels)*m.Width*m.Height:
		return fmt.Errorf("%d labels of %dx%d images need %d pixels, not %d",
			len(m.Labels), m.Width, m.Height, len(m.Labels)*m.Width*m.Height, len(m.Pixels))
	}
	return checkLabels(m.Labels)
}

func checkLabels(labels []byte) error {
	for i, label := range labels {
		if label >= classes {
			return fmt.Errorf("label %d is %d: labels must be 0 to %d", i, label, classes-1)
		}
	}
	return nil
}

// MarshalBinary encodes the images as one artifact.
func (m Images) MarshalBinary() ([]byte, error) {
	e := newEncoder("DGI1", 40+len(m.Pixels)+len(m.Labels))
	e.integer(m.Width, m.Height, m.Max)
	e.bytes(m.Pixels)
	e.bytes(m.Labels)
	return e.data, nil
}

// UnmarshalBinary decodes what MarshalBinary wrote and refuses all else.
func (m *Images) UnmarshalBinary(data []byte) error {
	d := newDecoder("DGI1", data)
	m.Width, m.Height, m.Max = d.integer(), d.integer(), d.integer()
	m.Pixels, m.Labels = d.bytes(), d.bytes()
	if err := d.close(); err != nil {
		return err
	}
	return m.check()
}

// sampleImages reads the embedded images: 1,797 digits of 8x8 pixels.
func sampleImages() (Images, error) {
	unpacked, err := gzip.NewReader(bytes.NewReader(embedded))
	if err != nil {
		return Images{}, fmt.Errorf("unpack the embedded images: %w", err)
	}
	m, err := readCSV(unpacked)
	if err != nil {
		return Images{}, fmt.Errorf("read the embedded images: %w", err)
	}
	return m, nil
}

// readCSV reads lines of 64 pixels of 0..16 and a label.
func readCSV(r io.Reader) (Images, error) {
	m := Images{Width: 8, Height: 8, Max: 16}
	lines := csv.NewReader(r)
	lines.FieldsPerRecord = m.Width*m.Height + 1
	lines.ReuseRecord = true
	for {
		record, err := lines.Read()
		if errors.Is(err, io.EOF) {
			return m, m.check()
		}
		if err != nil {
			return Images{}, err
		}
		for i, field := range record {
			limit := m.Max
			if i == len(record)-1 {
				limit = classes - 1
			}
			value, err := strconv.Atoi(field)
			if err != nil || value < 0 || value > limit {
				line, _ := lines.FieldPos(i)
				return Images{}, fmt.Errorf("line %d, field %d is %q: it must be a whole number from 0 to %d", line, i+1, field,
					limit)
			}
			if i < len(record)-1 {
				m.Pixels = append(m.Pixels, byte(value))
			} else {
				m.Labels = append(m.Labels, byte(value))
			}
		}
	}
}
