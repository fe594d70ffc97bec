"""Small faults as they happen to careful people, each with one quick test that must notice it.

`file` is below `template/`, or below the package of `template/project/src`. `old` stands in it exactly
once. `test` is a node id below `tests/`; it passes without the fault, as every normal run shows.
"""

from __future__ import annotations

from typing import NamedTuple


class Fault(NamedTuple):
    name: str
    file: str
    old: str
    new: str
    test: str


STEP, PRECISION, ORDER = "seams/test_step.py::", "seams/test_precision.py::", "seams/test_order.py::"
LOADER, CHECKPOINT, EVALUATION = (
    "seams/test_loader.py::",
    "seams/test_checkpoint.py::",
    "seams/test_evaluation.py::",
)
SESSION, WORKLOAD = "seams/test_session.py::", "seams/test_workload.py::"

FAULTS = (
    # --- the step
    Fault(
        "gradients are not cleared",
        "engine/precision.py",
        "raw.zero_grad(set_to_none=True)",
        "pass",
        STEP + "test_groups_do_not_leak_into_each_other",
    ),
    Fault(
        "loss / accumulate",
        "engine/step.py",
        "output = self.model(batch)\n",
        "output = self.model(batch)\n            output = output._replace(weight=output.weight * 0 + 1)\n",
        STEP + "test_a_group_of_ragged_batches_equals_one_big_batch",
    ),
    Fault(
        "the group's loss is the last micro-batch's",
        "engine/step.py",
        "loss = torch.stack([loss * weight for loss, weight in self.group]).sum()",
        "loss = self.group[-1][0] * self.group[-1][1]",
        STEP + "test_a_group_of_ragged_batches_equals_one_big_batch",
    ),
    Fault(
        "unclipped",
        "engine/precision.py",
        "torch.maximum(divisor, norm / clip) if clip else divisor",
        "divisor",
        STEP + "test_clipping_is_that_of_torch_on_the_mean_gradient",
    ),
    Fault(
        "clipped before the division",
        "engine/precision.py",
        "torch.maximum(divisor, norm / clip) if clip else divisor",
        "divisor * torch.clamp(norm / clip, min=1) if clip else divisor",
        STEP + "test_clipping_is_that_of_torch_on_the_mean_gradient",
    ),
    Fault(
        "averaged gradients are not made a sum again",
        "engine/step.py",
        "self._divisor = self._divisor / self.distributed.world",
        "pass",
        STEP + "test_two_ranks_that_average_gradients_equal_one",
    ),
    Fault(
        "every micro-batch is synchronised",
        "engine/step.py",
        "with nullcontext() if closes else self.no_sync():",
        "with nullcontext():",
        STEP + "test_gradients_stay_local_until_the_group_closes",
    ),
    Fault(
        "a state reaches a fresh lane",
        "engine/step.py",
        "_each(self.state, lambda state: _masked(state, keep))",
        "self.state",
        STEP + "test_a_state_goes_on_in_its_lane_and_starts_at_zero_where_fresh",
    ),
    Fault(
        "a state is masked by multiplication",
        "engine/step.py",
        "torch.where(keep.view(-1, *[1] * (state.dim() - 1)), state, torch.zeros_like(state))",
        "state * keep.view(-1, *[1] * (state.dim() - 1))",
        STEP + "test_a_state_goes_on_in_its_lane_and_starts_at_zero_where_fresh",
    ),
    Fault(
        "a state keeps its graph",
        "engine/step.py",
        "_each(output.carry, Tensor.detach)",
        "output.carry",
        STEP + "test_a_carried_state_is_cut_off_from_the_graph",
    ),
    Fault(
        "a state is carried across epochs",
        "engine/session.py",
        "self.step.carry.drop()",
        "pass",
        SESSION + "test_a_state_is_dropped_at_an_epochs_end_and_survives_a_stop[pytorch]",
    ),
    # --- number formats
    Fault(
        "gradients are not unscaled",
        "engine/precision.py",
        "self.scaler.unscale_(raw)",
        "pass",
        PRECISION + "test_the_optimizer_sees_the_unscaled_mean_gradient",
    ),
    Fault(
        "an overflow reaches the weights",
        "engine/precision.py",
        "raw.grad_scale, raw.found_inf = None, overflow",
        "raw.grad_scale, raw.found_inf = None, None",
        PRECISION + "test_an_overflow_skips_its_step_and_halves_the_scale",
    ),
    Fault(
        "an overflow is seen through no wrapper",
        "engine/precision.py",
        'raw = getattr(optimizer, "optimizer", optimizer)',
        "raw = optimizer",
        PRECISION + "test_an_overflow_skips_its_step_and_halves_the_scale",
    ),
    Fault(
        "the loss scale never moves",
        "engine/precision.py",
        "self.scaler.update()",
        "pass",
        PRECISION + "test_an_overflow_skips_its_step_and_halves_the_scale",
    ),
    Fault(
        "fp32 multiplies in TF32",
        "engine/precision.py",
        '"high" if allowed else "highest"',
        '"high"',
        PRECISION + "test_flags_follow_the_precision",
    ),
    Fault(
        "an overflow passes an unfused optimizer",
        "engine/precision.py",
        "raw.zero_grad(set_to_none=True)  # no gradients, no update; a framework counts the step",
        "pass",
        SESSION + "test_an_overflow_under_fp16_skips_one_update_and_no_step[false-accelerate]",
    ),
    # --- frameworks
    Fault(
        "Lightning counts a resumed epoch from its beginning",
        "parts/framework/lightning.py",
        "self.first = self.number = self.session.progress.batch",
        "self.first = self.number = 0",
        "test_tier_b.py::test_a_run_goes_on_under_another_framework",
    ),
    Fault(
        "Lightning keeps the signals",
        "parts/framework/lightning.py",
        "self.session.listen()  # Lightning has just put its own signal handlers in place",
        "pass",
        "test_resume.py::test_signal_saves_reports_and_resumes",
    ),
    Fault(
        "Accelerate casts a second time",
        "parts/framework/accelerate.py",
        '"mixed_precision": "no",',
        "",
        "test_tier_b.py::test_the_number_format_of_accelerate_launch_changes_nothing",
    ),
    Fault(
        "Accelerate divides by its own accumulation",
        "parts/framework/accelerate.py",
        '"gradient_accumulation_plugin": GradientAccumulationPlugin(num_steps=1),',
        "",
        "test_tier_b.py::test_the_number_format_of_accelerate_launch_changes_nothing",
    ),
    # --- trackers
    Fault(
        "a resumed run is tracked as a new one",
        "parts/tracker/mlflow.py",
        'read_json(self.folder / IDENTITY).get("id", "")',
        '""',
        "test_trackers.py::test_a_run_its_resume_and_its_evaluation_arrive_and_no_secret_does[mlflow]",
    ),
    Fault(
        "rows are drawn twice after a kill",
        "parts/tracker/tensorboard.py",
        "step + 1 if step else None",
        "None",
        "test_trackers.py::test_rows_that_come_again_after_a_kill_are_drawn_once",
    ),
    Fault(
        "an error line shows a password",
        "parts/tracker/_tracking.py",
        "if SECRET.search(name) and len(value) > 3:",
        "if not name:",
        "test_trackers.py::test_a_tracker_that_fails_midway_costs_one_line_and_no_step[tensorboard]",
    ),
    Fault(
        "validation losses are drawn into the training curve",
        "engine/monitor.py",
        'row.get("split", "train")',
        '"train"',
        "test_trackers.py::test_a_run_its_resume_and_its_evaluation_arrive_and_no_secret_does[tensorboard]",
    ),
    # --- learning rates
    Fault(
        "the warm-up begins at nothing",
        "engine/schedule.py",
        "return (step + 1) / warmup",
        "return step / warmup",
        "seams/test_schedule.py::test_warmup_then_decay_are_those_of_torch",
    ),
    Fault(
        "the schedule sets groups that are gone",
        "engine/schedule.py",
        "for group in self.optimizer.param_groups:",
        "self.old = getattr(self, 'old', self.optimizer.param_groups)\n        for group in self.old:",
        "seams/test_schedule.py::test_a_loaded_optimizer_is_still_the_one_that_is_set",
    ),
    Fault(
        "biases decay",
        "engine/optimization.py",
        '"weight_decay": 0.0}',
        '"weight_decay": settings.weight_decay}',
        "seams/test_optimization.py::test_each_weight_is_optimized_once_and_only_matrices_decay",
    ),
    # --- order and loaders
    Fault(
        "every epoch in one order",
        "engine/order.py",
        "self._sequence(np.random.default_rng([self.seed, number]))",
        "self._sequence(np.random.default_rng([self.seed, 0]))",
        ORDER + "test_seed_and_epoch_change_a_shuffled_order",
    ),
    Fault(
        "every seed in one order",
        "engine/order.py",
        "self._sequence(np.random.default_rng([self.seed, number]))",
        "self._sequence(np.random.default_rng([0, number]))",
        ORDER + "test_seed_and_epoch_change_a_shuffled_order",
    ),
    Fault(
        "filled up with a real sample",
        "engine/order.py",
        "filled = np.full(len(self) * self.slots, -1, np.int64)",
        "filled = np.full(len(self) * self.slots, self.samples[0], np.int64)",
        ORDER + "test_an_epoch_has_each_sample_once",
    ),
    Fault(
        "all ranks read the same",
        "engine/order.py",
        "mine = slice(self.rank * self.batch_size, (self.rank + 1) * self.batch_size)",
        "mine = slice(0, self.batch_size)",
        LOADER + "test_two_ranks_share_an_epoch[train-full-memmap]",
    ),
    Fault(
        "a lane begins with another one's state",
        "engine/order.py",
        "fresh[start + 1 : start + len(lane), slot] = False",
        "fresh[max(start, 1) : start + len(lane), slot] = False",
        ORDER + "test_a_lane_goes_on_in_time_and_says_where_it_begins",
    ),
    Fault(
        "lanes leak the future into their state",
        "engine/order.py",
        "self.samples[lane]\n",
        "self.samples[lane[::-1]]\n",
        ORDER + "test_a_lane_goes_on_in_time_and_says_where_it_begins",
    ),
    Fault(
        "a fraction of other samples each time",
        "engine/order.py",
        "return np.arange(count) * length // max(count, 1)",
        "return np.sort(np.random.permutation(length)[:count])",
        ORDER + "test_fraction_is_a_share_of_the_samples_for_good",
    ),
    Fault(
        "padding is what stood there before",
        "engine/rows.py",
        "row[length:] = 0",
        "pass",
        LOADER + "test_batches_hold_the_rows_of_their_samples[train-padded-time-memmap]",
    ),
    Fault(
        "an absent window is read",
        "engine/rows.py",
        "flat[torch.from_numpy(np.flatnonzero(~present)).to(source.device)] = 0",
        "pass",
        LOADER + "test_batches_hold_the_rows_of_their_samples[train-rows-time-memmap]",
    ),
    Fault(
        "workers change the order",
        "parts/loader/dataloader.py",
        "numbers, fresh = self.order.epoch(self._epoch)",
        "numbers, fresh = self.order.epoch(self._epoch + self.workers)",
        LOADER + "test_machine_settings_and_the_choice_of_loader_change_no_batch[full-host-dataloader]",
    ),
    Fault(
        "a resumed epoch begins at its beginning",
        "parts/loader/dataloader.py",
        "for batch in range(self._start, len(numbers)):",
        "for batch in range(len(numbers)):",
        LOADER + "test_any_position_can_be_resumed[0-time-dataloader]",
    ),
    Fault(
        "a resumed epoch reads the chunks of its beginning",
        "parts/loader/chunk.py",
        "self._chunks(numbers, number, start_batch)",
        "self._chunks(numbers, number, 0)",
        LOADER + "test_any_position_can_be_resumed[0-time-chunk]",
    ),
    Fault(
        "the DataLoader draws from the global generator",
        "parts/loader/dataloader.py",
        "generator=torch.Generator(),",
        "",
        LOADER + "test_no_global_random_number_is_drawn[0-dataloader]",
    ),
    Fault(
        "augmentation is the same in every epoch",
        "parts/loader/memmap.py",
        "rows = host(rows, numbers[batch], number)",
        "rows = host(rows, numbers[batch], 0)",
        LOADER + "test_batches_hold_the_rows_of_their_samples[train-host-time-memmap]",
    ),
    # --- evaluation
    Fault(
        "evaluated in training mode",
        "engine/evaluation.py",
        "model.eval()",
        "model.train()",
        EVALUATION + "test_no_trace_is_left",
    ),
    Fault(
        "sums in float32",
        "engine/evaluation.py",
        "torch.stack([total.detach().double(), count.double()])",
        "torch.stack([total.detach().float(), count.float()])",
        EVALUATION + "test_sums_equal_a_direct_computation_in_float64",
    ),
    Fault(
        "a mean of batch means",
        "engine/evaluation.py",
        '{"loss": (output.loss * output.weight, output.weight), **output.metrics}',
        '{"loss": (output.loss, torch.ones_like(output.loss)), **output.metrics}',
        EVALUATION + "test_sums_equal_a_direct_computation_in_float64",
    ),
    # --- runs and checkpoints
    Fault(
        "resumed without random state",
        "engine/session.py",
        'set_random_state(found["extra"]["random"])',
        "pass",
        "test_tier_b.py::test_trains_stops_resumes_and_evaluates[default]",
    ),
    Fault(
        "resumed with the schedule's beginning",
        "engine/session.py",
        "self.schedule.set(self.progress.step - self.progress.phase_start)",
        "self.schedule.set(0)",
        "test_tier_b.py::test_trains_stops_resumes_and_evaluates[default]",
    ),
    Fault(
        "the dry run moves running statistics",
        "engine/session.py",
        "buffer.copy_(buffers[name])",
        "pass",
        SESSION + "test_the_dry_run_leaves_no_trace[tabular]",
    ),
    Fault(
        "the last short group is not counted",
        "engine/session.py",
        "groups = -(-len(self.loader) // self.accumulation)",
        "groups = len(self.loader) // self.accumulation",
        "test_tier_b.py::test_accumulation_last_short_group_steps_and_resumes",
    ),
    Fault(
        "checkpoints are believed unread",
        "engine/checkpoint.py",
        "if sha256(path / name) != expected:",
        "if not (path / name).exists():",
        CHECKPOINT + "test_the_newest_valid_one_wins_and_others_are_named",
    ),
    Fault(
        "pruned before the new one verifies",
        "engine/checkpoint.py",
        "_read_folder(newest, tensors=False)",
        "pass",
        CHECKPOINT + "test_pruning_waits_until_the_new_one_verifies",
    ),
    Fault(
        "the best checkpoint is pruned",
        "engine/checkpoint.py",
        "spared = {self.best()}",
        "spared = {None}",
        CHECKPOINT + "test_the_best_one_stays_until_another_is_better",
    ),
    Fault(
        "other data are no obstacle",
        "engine/checkpoint.py",
        'if manifest["facts"].get(name) != value:',
        'if name not in manifest["facts"]:',
        CHECKPOINT + "test_other_facts_are_refused_before_anything_is_loaded",
    ),
    # --- the workload
    Fault(
        "filler counts in the loss",
        "parts/workload/tabular/model.py",
        "target = torch.where(present, target, prediction.detach())",
        "pass",
        WORKLOAD + "test_any_cut_into_batches_and_any_filling_give_the_same_sums[tabular]",
    ),
    Fault(
        "split borders are swapped",
        "parts/workload/tabular/dataset.py",
        "for place, name in enumerate(splits)}",
        "for place, name in enumerate(reversed(splits))}",
        "test_tabular.py::test_every_row_is_in_one_split_and_whole",
    ),
    Fault(
        "the scaler has seen validation and test",
        "parts/workload/tabular/prepare.py",
        'table, facts = describe(table, splits["train"])',
        "table, facts = describe(table, order)",
        "test_tabular.py::test_facts_come_from_the_training_rows_alone",
    ),
    Fault(
        "a window sees an open bar",
        "parts/workload/timeseries/dataset.py",
        'closed[rows - 1], present, frame["history"], 0)',
        'closed[rows], present, frame["history"], 0)',
        "test_timeseries.py::test_a_window_sees_no_open_bar",
    ),
    Fault(
        "the history holds the first target",
        "parts/workload/timeseries/dataset.py",
        'batch = {base["name"]: both[:, : base["history"]], **values}',
        'batch = {base["name"]: both[:, 1 : base["history"] + 1], **values}',
        "test_timeseries.py::test_a_window_belongs_to_the_split_that_holds_all_its_targets",
    ),
    Fault(
        "the series' scaler has seen validation and test",
        "parts/workload/timeseries/dataset.py",
        "if name in closed else border])",
        "if name in closed else None])",
        "test_timeseries.py::test_noise_behind_the_training_border_changes_neither_scaler_nor_losses",
    ),
    Fault(
        "unshifted tokens",
        "parts/workload/llm/dataset.py",
        "targets = values[:, 1:].masked_fill",
        "targets = values[:, :-1].masked_fill",
        "test_llm.py::test_each_token_but_the_first_is_the_target_of_the_one_before_it_once[7-memmap]",
    ),
    Fault(
        "a token sees the later ones",
        "parts/workload/llm/model.py",
        "is_causal=time > 1",
        "is_causal=False",
        "test_llm.py::test_no_token_sees_a_later_one",
    ),
    Fault(
        "evaluation starts at random places, too",
        "parts/workload/llm/dataset.py",
        "if self.training and self.random_start:",
        "if self.random_start:",
        "test_llm.py::test_random_start_shifts_in_training_only",
    ),
    Fault(
        "a cached token stands at the first position",
        "parts/workload/llm/model.py",
        "start = 0 if cache is None else cache.length",
        "start = 0",
        "test_llm.py::test_generating_with_a_cache_equals_without[5-flags0]",
    ),
    # --- the workload graph
    Fault(
        "training targets lie behind the border",
        "parts/workload/graph/dataset.py",
        "starts[1] - ahead",
        "starts[1]",
        "test_graph.py::test_noise_after_the_border_changes_nothing_before_it",
    ),
    Fault(
        "a graph knows the next refresh date",
        "parts/workload/graph/dataset.py",
        'np.searchsorted(opens, days, "right") - 1',
        'np.searchsorted(opens, days, "right").clip(max=len(opens) - 1)',
        "test_graph.py::test_graphs_are_those_of_the_past_correlations",
    ),
    Fault(
        "scaled by all days",
        "parts/workload/graph/dataset.py",
        'seats = arrays["seats"][train]',
        'seats = arrays["seats"]',
        "test_graph.py::test_noise_after_the_border_changes_nothing_before_it",
    ),
    Fault(
        "edges lead into the next day of a batch",
        "parts/workload/graph/model.py",
        "(nodes - nodes % seats)",
        "(0 * nodes)",
        "test_graph_attention.py::test_days_of_a_batch_do_not_see_each_other",
    ),
    Fault(
        "the derivative of a softmax without its mean",
        "parts/workload/graph/model.py",
        "to_scores.sub_(mean.index_select(0, target)).mul_(weights)",
        "to_scores.mul_(weights)",
        "test_graph_attention.py::test_derivatives_are_those_of_the_function",
    ),
)
