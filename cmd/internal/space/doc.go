// Package space gives back the room on the disk that nothing needs any more: it gathers who names which artifacts, has
// package retention decide, and removes what goes.
//
// Nobody has to stop for that, and a kill at any moment loses nothing that is named:
//   - The results of runs that give something back are forgotten first, so that no new run takes them, and who they are
//     is written down.
//   - What goes is then taken aside, each artifact before what it names, where everybody who has its digest still finds
//     it.
//   - All is gathered and decided a second time, where nobody gives anything more back. What was named meanwhile is put
//     back; the rest is deleted.
//
// What cannot be read ends a collection: it is never taken for something that names nothing. Temporal's list of
// workflows may be behind, and hides what comes while a workflow task is on its way: runs are looked for by the
// ledger's names as well, children where their parents name them, and what was written since an attempt began of which
// the end is not in the history yet stays.
package space
