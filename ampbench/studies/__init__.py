"""Studies, each in a worker process: convergence, loss scaling, autocast's scope, input storage, ceilings."""
