package digits

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
)

// errEncoding is wrapped when stored bytes are not what this version of the package writes.
var errEncoding = errors.New("bytes are not a valid encoding: remove what was stored by another build and start " +
	"the run again")

// encoder writes the artifacts of this package: a four-letter mark that names the kind and its version, then
// little-endian values.
type encoder struct{ data []byte }

func newEncoder(mark string, size int) *encoder {
	return &encoder{append(make([]byte, 0, len(mark)+size), mark...)}
}

func (e *encoder) integer(values ...int) {
	for _, v := range values {
		e.data = binary.LittleEndian.AppendUint64(e.data, uint64(v))
	}
}

func (e *encoder) number(values ...float64) {
	for _, v := range values {
		e.data = binary.LittleEndian.AppendUint64(e.data, math.Float64bits(v))
	}
}

func (e *encoder) bytes(values []byte) {
	e.integer(len(values))
	e.data = append(e.data, values...)
}

func (e *encoder) floats(values []float32) {
	e.integer(len(values))
	for _, v := range values {
		e.data = binary.LittleEndian.AppendUint32(e.data, math.Float32bits(v))
	}
}

// decoder reads what an encoder wrote. After the first thing that does not fit, it returns zero values and keeps the
// error for close.
type decoder struct {
	mark string
	data []byte
	err  error
}

func newDecoder(mark string, data []byte) *decoder {
	d := &decoder{mark: mark, data: data}
	if got := d.take(len(mark)); d.err == nil && string(got) != mark {
		d.fail("starts with %q", got)
	}
	return d
}

func (d *decoder) fail(format string, arguments ...any) {
	if d.err == nil {
		d.err = fmt.Errorf("decode %s: %s: %w", d.mark, fmt.Sprintf(format, arguments...), errEncoding)
	}
}

func (d *decoder) take(n int) []byte {
	if d.err == nil && (n < 0 || n > len(d.data)) {
		d.fail("%d bytes wanted, %d left", n, len(d.data))
	}
	if d.err != nil {
		return nil
	}
	taken := d.data[:n]
	d.data = d.data[n:]
	return taken
}

func (d *decoder) integer() int {
	if b := d.take(8); b != nil {
		return int(binary.LittleEndian.Uint64(b))
	}
	return 0
}

func (d *decoder) number() float64 {
	if b := d.take(8); b != nil {
		return math.Float64frombits(binary.LittleEndian.Uint64(b))
	}
	return 0
}

func (d *decoder) bytes() []byte { return append([]byte(nil), d.take(d.integer())...) }

func (d *decoder) floats() []float32 {
	n := d.integer()
	if d.err == nil && (n < 0 || n > len(d.data)/4) {
		d.fail("%d numbers wanted, %d bytes left", n, len(d.data))
	}
	if d.err != nil {
		return nil
	}
	values := make([]float32, n)
	for i := range values {
		values[i] = math.Float32frombits(binary.LittleEndian.Uint32(d.take(4)))
	}
	return values
}

// close returns the first error; bytes that are left are one.
func (d *decoder) close() error {
	if len(d.data) > 0 {
		d.fail("%d bytes too many", len(d.data))
	}
	return d.err
}
