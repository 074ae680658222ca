// Package retention decides which artifacts stay and which give their space back.
//
// A holder (a run, an upload, an event that waits) names artifacts, and artifacts name others in their text. What a
// holder reaches stays for as long as the holder does: one that has not ended stays whatever the policy says, one that
// has ended for Policy.KeepFor, and not as long where all that is held takes more than Policy.KeepBytes. What was
// written a short while ago stays as well, because its writer may be about to name it. All else goes, each with its
// reason. The decision is a pure function; package cmd/internal/space gathers what there is and removes what goes.
package retention
