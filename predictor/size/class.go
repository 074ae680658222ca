package size

import "github.com/spillway-ml/spillway/predictor/quantity"

// CoreMemory is the configured memory that comes with one core of a function
// (https://docs.aws.amazon.com/lambda/latest/dg/configuration-memory.html).
const CoreMemory = 1769 * quantity.MiB

// ClassCores is how many cores a memory class of functions comes with.
func ClassCores(class quantity.Bytes) float64 { return float64(class) / float64(CoreMemory) }

// OfClass is what an environment of a memory class may take: CPU in proportion to its memory, rounded down to the
// thousandth of a core.
func OfClass(class quantity.Bytes) quantity.Size {
	return quantity.Size{CPU: quantity.Milli(int64(class) * int64(quantity.Core) / int64(CoreMemory)), Memory: class}
}
