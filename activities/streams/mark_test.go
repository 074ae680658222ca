package streams_test

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/spillway-ml/spillway/activities/natstest"
	"github.com/spillway-ml/spillway/activities/streams"
)

// damagedStream is a stream with 100 messages of 200 KB, in three files, to which its server does something while it is
// off.
func damagedStream(t *testing.T, config jetstream.StreamConfig, damage func(files []string)) (
	js jetstream.JetStream, was streams.Mark,
) {
	t.Helper()
	dir := t.TempDir()
	server := natstest.StartOn(t, dir)
	js = server.Connect()
	config.Name, config.Subjects, config.Storage = "FACTS", []string{"facts.>"}, jetstream.FileStorage
	stream, err := js.CreateStream(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	for range 100 {
		if _, err := js.Publish(t.Context(), "facts.one", make([]byte, 200_000)); err != nil {
			t.Fatal(err)
		}
	}
	info, err := stream.Info(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	was = streams.MarkOf(info)
	server.Stop()
	files, err := filepath.Glob(filepath.Join(dir, "jetstream", "*", "streams", "FACTS", "msgs", "*"))
	if err != nil || len(files) < 4 {
		t.Fatalf("files of the stream: %v, %v; want three blocks and the index", files, err)
	}
	damage(files)
	server.Restart()
	return server.Connect(), was // what the first connection asks now may still go to the server that stopped
}

func blocks(files []string) []string {
	found := slices.DeleteFunc(slices.Clone(files), func(file string) bool { return filepath.Ext(file) != ".blk" })
	slices.Sort(found)
	return found
}

func cutInHalf(t *testing.T, file string) {
	t.Helper()
	info, err := os.Stat(file)
	if err == nil {
		err = os.Truncate(file, info.Size()/2)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func remove(t *testing.T, file string) {
	t.Helper()
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
}

// A server that has read a damaged file says nothing of it: it goes on with what is left.
func TestWhatADamagedFileHasTakenIsNoticed(t *testing.T) {
	t.Parallel()
	bounded := jetstream.StreamConfig{MaxAge: time.Hour, MaxBytes: 1 << 30}
	index := func(files []string) string { return filepath.Join(filepath.Dir(files[0]), "index.db") }
	for name, test := range map[string]struct {
		damage func(files []string)
		config jetstream.StreamConfig
		least  uint64
		within bool // a message is left on both sides of those that are lost
	}{
		"nothing":                {func([]string) {}, bounded, 0, false},
		"half of the first file": {func(files []string) { cutInHalf(t, blocks(files)[0]) }, bounded, 15, true},
		"half of the last file":  {func(files []string) { cutInHalf(t, blocks(files)[2]) }, bounded, 5, false},
		"half of the last file, and the index": {func(files []string) {
			cutInHalf(t, blocks(files)[2])
			remove(t, index(files))
		}, bounded, 5, false},
		"the first file": {func(files []string) { remove(t, blocks(files)[0]) }, bounded, 35, false},
		"the first file, of messages that were old": {
			func(files []string) { remove(t, blocks(files)[0]) }, jetstream.StreamConfig{MaxAge: time.Minute}, 0, false,
		},
		"the first file, of a stream that was full": {
			func(files []string) { remove(t, blocks(files)[0]) }, jetstream.StreamConfig{MaxBytes: 13 << 20}, 0, false,
		},
		"all files": {func(files []string) {
			for _, file := range files {
				remove(t, file)
			}
		}, bounded, 100, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			js, was := damagedStream(t, test.config, test.damage)
			now := time.Now()
			if test.config.MaxAge == time.Minute {
				now = now.Add(time.Minute)
			}
			is, loss, err := streams.Look(t.Context(), js, "FACTS", was, now)
			if err != nil || loss.Stream != "FACTS" {
				t.Fatalf("%+v, %v", loss, err)
			}
			if loss.Messages < test.least || test.least == 0 && loss.Messages > 0 {
				t.Errorf("%d messages are lost, want at least %d; it was %+v and is %+v", loss.Messages, test.least, was, is)
			}
			if test.within && !loss.Since.Before(loss.Until) {
				t.Errorf("they were stored between %s and %s", loss.Since, loss.Until)
			}
			if _, again, err := streams.Look(t.Context(), js, "FACTS", is, now); err != nil || again.Messages != 0 {
				t.Errorf("the next look finds %+v, %v; want that it is known by then", again, err)
			}
		})
	}
}

func TestAStreamThatIsGoneHasLostAll(t *testing.T) {
	t.Parallel()
	js := natstest.Start(t).Connect()
	was := streams.Mark{First: 11, Last: 30, Missing: 2, FirstStored: time.Now()}
	_, loss, err := streams.Look(t.Context(), js, "FACTS", was, time.Now())
	if err != nil || loss.Messages != 18 {
		t.Errorf("%+v, %v; want 18 messages", loss, err)
	}
	_, loss, err = streams.Look(t.Context(), js, "FACTS", streams.Mark{}, time.Now())
	if err != nil || loss.Messages != 0 {
		t.Errorf("of a stream that nobody knows: %+v, %v", loss, err)
	}
}

func TestAStreamThatHasLostItsEndGivesNoSequenceTwice(t *testing.T) {
	t.Parallel()
	for name, damage := range map[string]func(files []string){
		"all is lost": func(files []string) {
			for _, file := range files {
				remove(t, file)
			}
		},
		"the end is lost": func(files []string) {
			for _, file := range files {
				if !slices.Contains(blocks(files)[:2], file) {
					remove(t, file)
				}
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			js, was := damagedStream(t, jetstream.StreamConfig{}, damage)
			is, _, err := streams.Look(t.Context(), js, "FACTS", was, time.Now())
			if err != nil || is.Last >= was.Last {
				t.Fatalf("the stream is at %d, %v; want that it has lost its end at %d", is.Last, err, was.Last)
			}
			left := natstest.Messages(t, js, "FACTS")
			for _, last := range []uint64{was.Last + 2500, 7} { // it is behind the second already
				if err := streams.GoOnBehind(t.Context(), js, "FACTS", "facts.nobody", last); err != nil {
					t.Fatal(err)
				}
			}
			stored, err := js.Publish(t.Context(), "facts.one", nil)
			if err != nil || stored.Sequence != was.Last+2501 {
				t.Errorf("the next message is %+v, %v; want %d", stored, err, was.Last+2501)
			}
			if now := natstest.Messages(t, js, "FACTS"); now != left+1 {
				t.Errorf("%d messages are left of %d and a new one", now, left)
			}
		})
	}
	js := natstest.Start(t).Connect()
	if err := streams.GoOnBehind(t.Context(), js, "GONE", "facts.nobody", 7); err != nil {
		t.Errorf("a stream that there is not: %v", err)
	}
}
