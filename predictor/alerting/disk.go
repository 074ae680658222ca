package alerting

import (
	"fmt"
	"time"

	"github.com/spillway-ml/spillway/predictor/quantity"
)

// DiskScarce is the alert that the disk of the state directory has only so much left, from a time on.
func DiskScarce(free quantity.Bytes, at time.Time) Alert {
	return Alert{
		ID: fmt.Sprintf("%s/%d", KindDiskScarce, at.UnixNano()), Kind: KindDiskScarce, At: at,
		Message: fmt.Sprintf("the disk has %s left: new artifacts are refused, while Records and what runs need to go on "+
			"are still written. "+
			"Make room on it, or keep less with --keep-for or --keep-bytes; `spillway gc --dry-run` says what would go", free),
	}
}

// DiskEased is the alert that the disk has room again, after an alert that it had little.
func DiskEased(scarce Alert, at time.Time) Alert {
	return Alert{
		ID: scarce.ID + "/" + string(KindRecovered), Kind: KindRecovered, Recovers: KindDiskScarce, At: at,
		Message: "the disk has room again: new artifacts are taken",
	}
}
