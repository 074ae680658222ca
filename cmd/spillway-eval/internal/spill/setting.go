package spill

import (
	"time"

	"github.com/spillway-ml/spillway/predictor/provision"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

// Setting is what all policies have in common.
type Setting struct {
	provision.Terms
	// Batch is how many tasks a host of each type serves at once.
	Batch []int
	// Limit is how long a task may take from its arrival on.
	Limit time.Duration
	// Warm is how long a function takes for a task, Cold how much longer one that starts for it.
	Warm, Cold time.Duration
	// Idle is how long an environment of a function is kept while nothing calls it.
	Idle time.Duration
	// Ramp is how many environments may start within RampTime.
	Ramp     int
	RampTime time.Duration
}

// Step is the time between two decisions.
const Step = time.Minute

// Inception is the image classification that MArk serves (C. Zhang et al., USENIX ATC 2019): tasks a minute of five EC2
// types as its published code has them, with AWS's prices in us-east-1 of that time, which together come to its $5.00 a
// million tasks on c5.large; and its $19.00 and 380 ms on functions. A c5.large takes 60 s / 284 = 211 ms, as it says;
// a p2.xlarge serves 415 batches of 8.
//
// What functions do besides is AWS's: environments start within 1.2 s (LambdaML, J. Jiang et al., SIGMOD 2021, for ten
// at once), which is billed like work since August 2025; they are kept for at least five minutes; a function may start
// 1,000 more every ten seconds.
func Inception() Setting {
	setting := Setting{
		Terms: provision.Terms{Function: 19 * quantity.USD / 1_000_000, Delay: 1, Hold: 10},
		Limit: time.Second, Warm: 380 * time.Millisecond, Cold: 1200 * time.Millisecond, Idle: 5 * time.Minute,
		Ramp: 1000, RampTime: 10 * time.Second,
	}
	for _, host := range []struct {
		name  string
		tasks float64
		batch int
		mills quantity.Money // tenths of a cent an hour
	}{
		{"c5.large", 284, 1, 85},
		{"c5.xlarge", 490, 1, 170},
		{"c5.2xlarge", 771, 1, 340},
		{"c5.4xlarge", 1080, 1, 680},
		{"p2.xlarge", 415 * 8, 8, 900},
	} {
		setting.Hosts = append(setting.Hosts, provision.Host{
			Name: host.name, Tasks: host.tasks, Step: host.mills * quantity.USD / 1000 / 60,
		})
		setting.Batch = append(setting.Batch, host.batch)
	}
	return setting
}
