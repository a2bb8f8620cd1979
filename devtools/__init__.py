"""Developer tooling: environment, lab, test orchestration. Never shipped with the collection."""
