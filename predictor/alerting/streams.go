package alerting

import (
	"fmt"
	"strings"
	"time"
)

// StreamsLost is the alert that the streams of these names, one or more, were found to be gone at a time. Each loss is
// an alert of its own.
func StreamsLost(names []string, at time.Time) Alert {
	return Alert{
		ID: fmt.Sprintf("%s/%d", KindStreamsLost, at.UnixNano()), Kind: KindStreamsLost, At: at,
		Message: fmt.Sprintf("streams of NATS were gone, with all that was in them: %s; they were made anew, and runs go "+
			"on. Find out who deleted them: "+
			"it takes the owner's token, or a hand in the state directory. Events that waited have to be published again",
			strings.Join(names, ", ")),
	}
}

// LedgerFailing is the alert that the ledger of costs could not be kept at a time, or was damaged and is made anew, and
// why. Each is an alert of its own.
func LedgerFailing(why error, at time.Time) Alert {
	return Alert{
		ID: fmt.Sprintf("%s/%d", KindLedgerFailing, at.UnixNano()), Kind: KindLedgerFailing, At: at,
		Message: fmt.Sprintf("the ledger of costs could not be kept: %v. Runs go on, and it is tried again; while it fails, "+
			"bills are answered with this error. Look at the disk of the state directory, or at the ledger's database", why),
	}
}
