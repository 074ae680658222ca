package graph

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"

	"github.com/spillway-ml/spillway/predictor/quantity"
)

// The device classes that the readers of foreign profiles fill.
const (
	// Accelerator is the device that was profiled: a GPU.
	Accelerator = "accelerator"
	// CPU is the host's processor.
	CPU = "cpu"
)

// Limits are the machines that a profile was planned for. The zero value of a field is unknown.
type Limits struct {
	// Accelerators and CPUs are how many there are.
	Accelerators, CPUs int
	// Memory is that of one accelerator.
	Memory quantity.Bytes
	// BytesPerSecond is the bandwidth between two of them.
	BytesPerSecond float64
	// MicroBatches is the largest number of micro-batches in a batch.
	MicroBatches int
}

// mostText bounds what a reader holds in memory.
const mostText = 256 << 20

// decode reads one JSON value into v and refuses what follows it. Errors tell the line.
func decode(r io.Reader, what string, v any) error {
	text, err := io.ReadAll(io.LimitReader(r, mostText+1))
	if err != nil {
		return fmt.Errorf("read %s: %w", what, err)
	}
	if len(text) > mostText {
		return fmt.Errorf("read %s: more than %d bytes", what, mostText)
	}
	decoder := json.NewDecoder(bytes.NewReader(text))
	if err := decoder.Decode(v); err != nil {
		return fmt.Errorf("read %s: line %d: %w", what, lineOf(text, err, decoder.InputOffset()), err)
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return fmt.Errorf("read %s: line %d: text after the end of the value", what, lineAt(text, decoder.InputOffset()))
	}
	return nil
}

func lineOf(text []byte, err error, offset int64) int {
	var syntax *json.SyntaxError
	var kind *json.UnmarshalTypeError
	switch {
	case errors.As(err, &syntax):
		offset = syntax.Offset
	case errors.As(err, &kind):
		offset = kind.Offset
	}
	return lineAt(text, offset)
}

func lineAt(text []byte, offset int64) int {
	return 1 + bytes.Count(text[:min(max(offset, 0), int64(len(text)))], []byte("\n"))
}

// sizeOf converts a measured number of bytes, which profiles hold as a real number.
func sizeOf(value float64) (quantity.Bytes, error) {
	if math.IsNaN(value) || value < 0 || value > float64(MostBytes) {
		return 0, fmt.Errorf("%v bytes; want 0 to %d", value, MostBytes)
	}
	return quantity.Bytes(math.Round(value)), nil
}

// spanOf converts a measured time in a unit.
func spanOf(value float64, unit Seconds) (Seconds, error) {
	span := Seconds(value) * unit
	if !span.valid() {
		return 0, fmt.Errorf("time %v; want a finite number from 0", value)
	}
	return span, nil
}

// fields collects the first error of several conversions with the field's name.
type fields struct{ err error }

func (f *fields) bytes(name string, value float64) quantity.Bytes {
	size, err := sizeOf(value)
	f.keep(name, err)
	return size
}

func (f *fields) span(name string, value float64, unit Seconds) Seconds {
	span, err := spanOf(value, unit)
	f.keep(name, err)
	return span
}

func (f *fields) keep(name string, err error) {
	if f.err == nil && err != nil {
		f.err = fmt.Errorf("%s: %w", name, err)
	}
}
