package wire

import (
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

// HostUserPrefix begins the name with which a host that has joined connects to NATS; its own name follows.
const HostUserPrefix = "host:"

const (
	leasePrefix = "$KV." + HostBucket + "."
	logPrefix   = "spillway.logs."
	planStream  = "KV_" + PlanBucket
)

// HostSubjects are the subjects of NATS on which a host that has joined may publish: it tells Records, starts, samples,
// for how long it was held and what its attempts print, renews its lease, and reads the plan. Its name is one that is a
// key of a bucket as it is. What it says there is checked by CheckHostTold.
func HostSubjects(host string) []string { return append(hostSubjects(host), leasePrefix+host) }

// AnyHostSubjects are the subjects on which some host may publish.
func AnyHostSubjects() []string { return append(hostSubjects(">"), leasePrefix+">") }

func hostSubjects(host string) []string {
	const api = "$JS.API."
	plan := "$KV." + PlanBucket + "." + PlanKey
	subjects := []string{
		LoopSubject(KindRecord), LoopSubject(KindAttemptStarted), LoopSubject(KindHostStarted), LoopSubject(KindHostHeld),
		FactSubject(KindSampled), logPrefix + "*.*.*.*",
		api + "STREAM.INFO.KV_" + HostBucket, api + "STREAM.INFO." + planStream,
		api + "DIRECT.GET." + planStream + "." + plan,
		api + "CONSUMER.CREATE." + planStream + ".*." + plan, // which agents of the version before read
		api + "CONSUMER.CREATE." + planStream + ".*.$KV." + PlanBucket + "." + HostPlanPrefix + host,
	}
	for _, call := range []string{"MSG.NEXT", "INFO", "DELETE"} {
		subjects = append(subjects, api+"CONSUMER."+call+"."+planStream+".*")
	}
	return subjects
}

var plainName = regexp.MustCompile(`^[A-Za-z0-9][-_A-Za-z0-9]*(\.[-_A-Za-z0-9]+)*$`)

// HasHostPlan says whether what a host obeys lies under a key of its own: that of a host whose name is a key does, so
// that of each that has joined.
func HasHostPlan(host string) bool { return plainName.MatchString(host) }

// PlanStream is the stream below the plan's bucket: the only one that hosts may read.
const PlanStream = planStream

// IsHostHeader says whether a header of what a host publishes on a subject goes on to NATS: what goes on of a build's,
// and by which a host ends its own lease. Its proof is for who checks it, and kept nowhere.
func IsHostHeader(subject, name string) bool {
	ends := name == "KV-Operation" || name == "Nats-Rollup"
	return IsBuildHeader(name) && name != ProofHeader || ends && strings.HasPrefix(subject, leasePrefix)
}

// RecordID is the ID of the message with the Record of an attempt, so that the server keeps one line for it. A task
// that a venue refused starts on the pool's own queue with attempt 1 again: that is another attempt, and has another
// ID.
func RecordID(record predictor.Record) string {
	id := record.Run + "/" + record.Task + "/" + strconv.Itoa(record.Attempt)
	if record.PoolOnly {
		id += "/pool"
	}
	return id
}

// HostHeldID is the ID of the message that tells for how long a host was held.
func HostHeldID(held predictor.HostHeld) string {
	return "held/" + held.Host + "/" + strconv.FormatInt(held.From.UnixNano(), 10) + "/" +
		strconv.FormatInt(held.At.UnixNano(), 10)
}

// HostStartedID is the ID of the message that tells of a start of a host.
func HostStartedID(started predictor.HostStarted) string {
	return "started/" + started.Host + "/" + string(started.Venue) + "/" + started.Instance
}

// Shown is what a host has shown with a message, and what is known of the host. A nil Shown is that of a host of a
// version before proofs: what it tells of attempts is taken for its own.
type Shown struct {
	// Given is the attempt that it was given, by its proof; nil without one.
	Given *Given
	// PricePerHour is the most that it has said that all of it costs; a lease raises it.
	PricePerHour quantity.Money
	// Now is when the message came.
	Now time.Time
}

// given is the attempt that a message has to be of; nil where none was shown that would have to be.
func (s *Shown) given() (*Given, error) {
	switch {
	case s == nil:
		return nil, nil //nolint:nilnil // there is nothing to check
	case s.Given == nil:
		return nil, errors.New("it does not show that the host was given the attempt")
	}
	return s.Given, s.Given.Expired(s.Now)
}

// CheckHostTold says why a host that has joined may not publish a message with this ID, empty for none, on one of
// HostSubjects; nil where it may. It tells of itself and of attempts that it was given, and under their IDs.
func CheckHostTold(host, subject, id string, data []byte, shown *Shown) error {
	switch {
	case strings.HasPrefix(subject, leasePrefix):
		return checkLease(host, id, data, shown)
	case strings.HasPrefix(subject, logPrefix):
		return checkLogs(host, subject, data, shown)
	case strings.HasPrefix(subject, loopPrefix), strings.HasPrefix(subject, samplePrefix):
		return checkHostFact(host, subject, id, data, shown)
	default:
		return fmt.Errorf("a host has nothing to say on %s", subject)
	}
}

// checkLease checks how a host describes itself; with no data it ends its lease.
func checkLease(host, id string, data []byte, shown *Shown) error {
	if id != "" {
		return errors.New("a lease has no ID: leave it out")
	}
	if len(data) == 0 {
		return nil
	}
	var leased struct {
		Host struct {
			ID           string         `json:"id"`
			PricePerHour quantity.Money `json:"price_per_hour_picodollars"`
		} `json:"host"`
	}
	if err := json.Unmarshal(data, &leased); err != nil {
		return fmt.Errorf("decode lease: %w", err)
	}
	if shown != nil {
		if err := checkPrice(leased.Host.PricePerHour); err != nil {
			return err
		}
		shown.PricePerHour = max(shown.PricePerHour, leased.Host.PricePerHour)
	}
	return isHost(host, leased.Host.ID)
}

// checkPrice says why a host cannot cost so much per hour.
func checkPrice(perHour quantity.Money) error {
	if perHour < 0 || perHour > MostHostPrice {
		return fmt.Errorf("it says that it costs %s per hour, and a host costs at most %s", perHour, MostHostPrice)
	}
	return nil
}

func isHost(host, named string) error {
	if named != host {
		return fmt.Errorf("it is of host %.80q, and not of %q", named, host)
	}
	return nil
}

// checkLogs checks what an attempt has printed. Its messages have IDs that are made up at random.
func checkLogs(host, subject string, data []byte, shown *Shown) error {
	logs, err := DecodeLogs(data)
	if err != nil {
		return err
	}
	if logs.Source.Venue != predictor.Pool {
		return fmt.Errorf("a host has no attempts at venue %.80q", logs.Source.Venue)
	}
	if LogSubject(logs.Source) != subject {
		return fmt.Errorf("what the attempt has printed is none for %s", subject)
	}
	given, err := shown.given()
	if err != nil {
		return err
	}
	if s := logs.Source; given != nil && (s.Run != given.Run || s.Stage != given.Stage.Name || s.Task != given.Task ||
		s.Attempt != given.Attempt) {
		return given.errOther(s.Run, s.Task, s.Attempt)
	}
	return isHost(host, logs.Source.Host)
}

// checkHostFact checks what a host tells the loop.
func checkHostFact(host, subject, id string, data []byte, shown *Shown) error {
	message, err := DecodeMessage(data)
	if err != nil {
		return err
	}
	if FactSubject(message.Kind()) != subject {
		return fmt.Errorf("a message of kind %q is none for %s", message.Kind(), subject)
	}
	var of, own string
	venue := predictor.Pool
	switch event := message.Event.(type) {
	case predictor.Record:
		of, venue, own = event.Host, event.Venue, RecordID(event)
	case predictor.AttemptStarted:
		of, venue = event.Host, event.Venue
		if event.Supervisor != "" {
			err = isHost(host, event.Supervisor)
		}
	case predictor.HostStarted:
		of, venue, own = event.Host, event.Venue, HostStartedID(event)
	case predictor.HostHeld:
		of, own = event.Host, HostHeldID(event)
	case predictor.Sampled:
		of, venue = event.Host, event.Venue
	default:
		err = fmt.Errorf("a host has no message of kind %q to tell", message.Kind())
	}
	switch {
	case err != nil:
		return err
	case venue != predictor.Pool:
		return fmt.Errorf("a host has no attempts at venue %.80q", venue)
	case id != own && own != "": // without its ID it would be kept twice
		return fmt.Errorf("the ID %.80q is none for it: it is %.80q", id, own)
	case id != "" && own == "":
		return fmt.Errorf("it has no ID: leave %.80q out", id)
	}
	return errors.Join(isHost(host, of), shown.check(message.Event))
}

// check says why a host may not tell an event; nil where it may.
func (s *Shown) check(event predictor.Event) error {
	if s == nil {
		return nil
	}
	if held, is := event.(predictor.HostHeld); is {
		return errors.Join(checkPrice(held.PricePerHour), checkTime(held.At, s.Now))
	}
	if started, is := event.(predictor.HostStarted); is {
		return checkTime(started.At, s.Now)
	}
	given, err := s.given()
	if err == nil {
		err = given.Whole()
	}
	if err != nil {
		return err
	}
	switch event := event.(type) {
	case predictor.Record:
		return given.CheckRecord(event, s.PricePerHour, s.Now)
	case predictor.AttemptStarted:
		return given.checkStarted(event, s.Now)
	case predictor.Sampled:
		return errors.Join(given.is(event.Run, event.Stage, event.Task, event.Attempt), checkTime(event.At, s.Now))
	default:
		return fmt.Errorf("a host has nothing to tell as %T", event)
	}
}
