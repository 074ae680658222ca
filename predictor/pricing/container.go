package pricing

import (
	"time"

	"github.com/spillway-ml/spillway/predictor/quantity"
)

// ContainerLeast is for how long a container is billed at least, from when its image is fetched
// (https://aws.amazon.com/fargate/pricing/).
const ContainerLeast = time.Minute

// containerSizes are the sizes that Fargate has: cores, and which memory can be had with them
// (https://docs.aws.amazon.com/AmazonECS/latest/developerguide/task-cpu-memory-error.html).
var containerSizes = []struct {
	cores             quantity.Milli
	least, most, step quantity.Bytes
}{
	{250, 512 * quantity.MiB, 512 * quantity.MiB, 512 * quantity.MiB},
	{250, quantity.GiB, 2 * quantity.GiB, quantity.GiB},
	{500, quantity.GiB, 4 * quantity.GiB, quantity.GiB},
	{1000, 2 * quantity.GiB, 8 * quantity.GiB, quantity.GiB},
	{2000, 4 * quantity.GiB, 16 * quantity.GiB, quantity.GiB},
	{4000, 8 * quantity.GiB, 30 * quantity.GiB, quantity.GiB},
	{8000, 16 * quantity.GiB, 60 * quantity.GiB, 4 * quantity.GiB},
	{16000, 32 * quantity.GiB, 120 * quantity.GiB, 8 * quantity.GiB},
}

// ContainerFor is the cheapest size of container that holds a size, and what an hour of it costs; known is false where
// none does: it needs a GPU or more than the largest has, or the offer has no price for cores or memory.
func (o Offer) ContainerFor(need quantity.Size) (size quantity.Size, perHour quantity.Money, known bool) {
	core, hasCore := o.Prices[PerCoreHour]
	gib, hasGiB := o.Prices[PerGiBHour]
	if !hasCore || !hasGiB || need.GPU > 0 || need.DeviceClass != "" {
		return quantity.Size{}, 0, false
	}
	for _, offered := range containerSizes {
		memory := offered.least
		if over := need.Memory - memory; over > 0 {
			memory += (over + offered.step - 1) / offered.step * offered.step
		}
		if offered.cores < need.CPU || memory > offered.most {
			continue
		}
		price := core.Prorated(quantity.Fraction{Of: int64(offered.cores), In: int64(quantity.Core)}).
			Plus(gib.Prorated(quantity.Fraction{Of: int64(memory), In: int64(quantity.GiB)}))
		if !known || price < perHour {
			size, perHour, known = quantity.Size{CPU: offered.cores, Memory: memory}, price, true
		}
	}
	return size, perHour, known
}
