package memory

import (
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/spillway-ml/spillway/predictor/fact"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/predictor/usage"
)

// maxDevices bounds the device classes of which a stage's run times are remembered: a pool has few. The first stay.
const maxDevices = 8

// onDevice takes how long an attempt at the pool ran that held a GPU of a class; of an empty class it takes nothing.
func (m *Model) onDevice(e fact.Record, class string, resized bool) {
	wall, _ := e.Training.OwnPart(e.Usage.Wall)
	if class == "" || e.Outcome != fact.Succeeded || e.Venue != fact.Pool || wall <= 0 || wall > fact.MaxWall {
		return
	}
	class = strings.ToValidUTF8(class[:min(len(class), maxProgram)], "")
	times, known := m.Devices[class]
	if !known && len(m.Devices) >= maxDevices {
		return
	}
	if m.Devices == nil {
		m.Devices = map[string]usage.Times{}
	}
	cores := e.Grant.CPU.Cores()
	if resized {
		cores = 0
	}
	times.Follow(usage.InputBytes)
	times.AddAt(cores, microseconds(wall.Seconds()), featuresOf(e))
	m.Devices[class] = times
}

// DeviceClasses are those of which run times are known, sorted.
func (m *Model) DeviceClasses() []string { return slices.Sorted(maps.Keys(m.Devices)) }

// OnDevice is how many seconds tasks take at the pool on GPUs of a class, in the mean, with so many cores, where they
// take alike seconds there in the mean of all the latest attempts at the pool, or, where than is no empty class, on
// GPUs of that one. What inputs explain of the run times is no difference between classes. Known is false where it is
// not known of class, or not of what it is compared with.
func (m *Model) OnDevice(class, than string, alike float64, cpu quantity.Milli) (seconds float64, known bool) {
	other := m.Walls[fact.Pool]
	if than != "" {
		other = m.Devices[than]
	}
	mine, theirs := m.sized(m.Devices[class], cpu), m.sized(other, cpu)
	power := 0.0
	if inputsKnown(mine) && inputsKnown(theirs) {
		power = m.byInput(cpu)
	}
	a, b := meanWithout(mine, power), meanWithout(theirs, power)
	if !(a > 0) || !(b > 0) {
		return 0, false
	}
	return alike * a / b, true
}

// sizedTime is how many seconds an attempt took, and its input in bytes.
type sizedTime struct{ seconds, input float64 }

// sized are run times as they would be with so many cores, with the inputs as far as these are known.
func (m *Model) sized(times usage.Times, cpu quantity.Milli) []sizedTime {
	brought := times.At(cpu.Cores(), m.Speed())
	var inputs []float64
	if column := slices.Index(brought.Names, usage.InputBytes); column >= 0 && column < len(brought.Columns) {
		inputs = brought.Columns[column]
	}
	sized := make([]sizedTime, len(brought.Values))
	for i, seconds := range brought.Values {
		if sized[i].seconds = seconds; i < len(inputs) {
			sized[i].input = inputs[i]
		}
	}
	return sized
}

func inputsKnown(all []sizedTime) bool {
	return !slices.ContainsFunc(all, func(one sizedTime) bool { return !(one.input > 0 && one.seconds > 0) })
}

// byInput is the power of their input by which tasks take longer on the same devices: the slope that the logarithms of
// run times have in common within the classes, by least squares (the analysis of covariance: Fisher, Statistical
// Methods for Research Workers, 4th edition, 1932). The curve of the stage is one of all its attempts, and takes a
// class that had larger inputs for a slower one. It is 0 unless it is more than twice its standard error.
func (m *Model) byInput(cpu quantity.Milli) float64 {
	var sxx, sxy, syy, freedom float64
	for _, class := range m.DeviceClasses() {
		all := m.sized(m.Devices[class], cpu)
		if !inputsKnown(all) {
			continue
		}
		var x, y float64
		for _, one := range all {
			x, y = x+math.Log(one.input)/float64(len(all)), y+math.Log(one.seconds)/float64(len(all))
		}
		for _, one := range all {
			dx, dy := math.Log(one.input)-x, math.Log(one.seconds)-y
			sxx, sxy, syy = sxx+dx*dx, sxy+dx*dy, syy+dy*dy
		}
		freedom += float64(len(all) - 1)
	}
	if freedom--; !(sxx > 0) || freedom < 1 {
		return 0
	}
	slope := sxy / sxx
	if doubt := math.Sqrt(max(0, syy-slope*sxy) / freedom / sxx); !(slope > 2*doubt) {
		return 0
	}
	return slope
}

// meanWithout is the mean of run times without what their inputs explain, to a power; 0 without times.
func meanWithout(all []sizedTime, power float64) (mean float64) {
	for _, one := range all {
		if power > 0 {
			one.seconds *= math.Pow(one.input, -power)
		}
		mean += one.seconds / float64(len(all))
	}
	return mean
}
