package exchange

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math"
)

// Vector is what a worker computes of a round, gradients or a model, and how much it counts in the mean.
type Vector struct {
	// Weight is how much it counts beside others, such as the number of samples that it is a mean over; above 0.
	Weight float64
	// Values are as many in every part.
	Values []float32
}

// errMessage says that a message is not what this package writes, such as one that was cut off by a crash.
var errMessage = errors.New("the message is damaged")

// mark begins each message, so that it is not taken for anything else, and names its version.
const mark = "SPX1"

// head is what is before the values: the mark, a checksum of all that follows it, and the weight.
const head = len(mark) + 4 + 8

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// encode writes a vector as a message: mark, CRC-32C, weight, and the values, all little-endian.
func (v Vector) encode() []byte {
	data := make([]byte, head, head+4*len(v.Values))
	copy(data, mark)
	binary.LittleEndian.PutUint64(data[len(mark)+4:], math.Float64bits(v.Weight))
	for _, value := range v.Values {
		data = binary.LittleEndian.AppendUint32(data, math.Float32bits(value))
	}
	binary.LittleEndian.PutUint32(data[len(mark):], crc32.Checksum(data[len(mark)+4:], castagnoli))
	return data
}

func decode(data []byte) (Vector, error) {
	if len(data) < head || string(data[:len(mark)]) != mark || (len(data)-head)%4 != 0 ||
		binary.LittleEndian.Uint32(data[len(mark):]) != crc32.Checksum(data[len(mark)+4:], castagnoli) {
		return Vector{}, fmt.Errorf("%d bytes: %w", len(data), errMessage)
	}
	v := Vector{
		Weight: math.Float64frombits(binary.LittleEndian.Uint64(data[len(mark)+4:])),
		Values: make([]float32, (len(data)-head)/4),
	}
	for i := range v.Values {
		v.Values[i] = math.Float32frombits(binary.LittleEndian.Uint32(data[head+4*i:]))
	}
	return v, v.check()
}

// check refuses a weight by which nothing can be divided.
func (v Vector) check() error {
	if !(v.Weight > 0) || math.IsInf(v.Weight, 1) {
		return fmt.Errorf("a part of weight %g: give a number above 0, such as how many samples it has", v.Weight)
	}
	return nil
}

// piece is one of count nearly equal pieces of the values.
func (v Vector) piece(number, count int) Vector {
	from, to := len(v.Values)*number/count, len(v.Values)*(number+1)/count
	return Vector{Weight: v.Weight, Values: v.Values[from:to]}
}

// mean adds parts up in their order, in float64, each by its weight. The order makes the mean the same to the last bit,
// whoever computes it; the weight of a mean is that of all parts.
func mean(parts []Vector) (Vector, error) {
	sum := make([]float64, len(parts[0].Values))
	weight := 0.0
	for i, part := range parts {
		if len(part.Values) != len(sum) {
			return Vector{}, fmt.Errorf("part %d has %d values and part 0 has %d: every part of a round has as many", i,
				len(part.Values), len(sum))
		}
		weight += part.Weight
		for j, value := range part.Values {
			sum[j] += part.Weight * float64(value)
		}
	}
	all := Vector{Weight: weight, Values: make([]float32, len(sum))}
	for j, value := range sum {
		all.Values[j] = float32(value / weight)
	}
	return all, nil
}
