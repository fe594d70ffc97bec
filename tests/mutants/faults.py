"""Small faults as they happen to careful people, each with one quick test that must notice it.

`file` is below `template/`, or below the package of `template/project/src`. `old` stands in it exactly
once. `test` is a node id below `tests/`; it passes without the fault, as every normal run shows.
"""

from __future__ import annotations

from typing import NamedTuple

DISTRIBUTED = "test_distributed.py::"


class Fault(NamedTuple):
    name: str
    file: str
    old: str
    new: str
    test: str


LOOP, PRECISION, ORDER = "seams/test_loop.py::", "seams/test_precision.py::", "seams/test_order.py::"
LOADER, CHECKPOINT, EVALUATION = (
    "seams/test_loader.py::",
    "seams/test_checkpoint.py::",
    "seams/test_evaluation.py::",
)
STORE = "seams/test_store.py::"
SESSION, WORKLOAD = "seams/test_session.py::", "seams/test_workload.py::"

CHECK = (
    Fault(
        "check passes a loss that counts filler",
        "parts/extras/contract.py",
        "require(close(alone, filled), why, where)",
        "pass",
        "test_check.py::test_what_breaks_the_contract_is_named[a forgotten mask]",
    ),
    Fault(
        "check looks one row too late for a leak",
        "parts/extras/contract.py",
        "np.arange(length) >= places[:, None]",
        "np.arange(length) > places[:, None]",
        "test_check.py::test_what_breaks_the_contract_is_named[a leak by one row]",
    ),
)

PICTURES = (
    Fault(
        "pictures leave the model as it evaluates",
        "hooks/pictures.py",
        "project.model.train(was_training)",
        "pass",
        "test_pictures.py::test_pictures_cost_no_bit_of_the_training[seldom]",
    ),
    Fault(
        "the report's scale is that of the whole run",
        "engine/report.py",
        "if step >= border]",
        "]",
        "test_report.py::test_the_first_values_flatten_no_curve_and_the_best_is_named",
    ),
    Fault(
        "a loss that begins above the naive one is an alert",
        "engine/monitor.py",
        "elif step >= self.end / 10 and not",
        "elif not",
        "test_pictures.py::test_what_an_alert_of_divergence_is",
    ),
)

WEIGHTS = (
    Fault(
        "Muon takes embeddings",
        "engine/optimization.py",
        "if key not in apart and w.dim()",
        "if w.dim()",
        "test_muon.py::test_each_weight_has_the_step_of_its_own_kind",
    ),
    Fault(
        "a loaded state's groups do not reach Muon",
        "engine/optimization.py",
        "part.param_groups, part.state = groups, self.state",
        "part.state = self.state",
        "test_muon.py::test_each_weight_has_the_step_of_its_own_kind",
    ),
    Fault(
        "a resumed run starts from other weights again",
        "engine/weights.py",
        "    if restored:\n        return",
        "    if False:\n        return",
        "test_weights.py::test_a_resumed_run_goes_on_from_its_own_weights[pytorch]",
    ),
    Fault(
        "frozen weights are trained",
        "engine/weights.py",
        "weight.requires_grad_(False)",
        "weight.requires_grad_(True)",
        "test_weights.py::test_frozen_weights_stay_and_a_phase_trains_them[pytorch]",
    ),
    Fault(
        "a rank takes all rows of sharded weights",
        "engine/weights.py",
        "self._parts.setdefault(name, []).append((opened, key))",
        "self._parts[name] = [(opened, key)]",
        "test_weights.py::test_two_ranks_start_from_whole_and_from_sharded_weights[fsdp]",
    ),
)

HOOKS = (
    Fault(
        "a hook's state is not restored",
        "engine/progress.py",
        "hook.load_state_dict(state[name])",
        "pass",
        "test_hooks.py::test_a_hooks_state_survives_stops_and_changes_no_loss[pytorch]",
    ),
    Fault(
        "a hook's state ends with its phase",
        "engine/run.py",
        'self.checkpoint.load_model("last", also=("hooks",))',
        'self.checkpoint.load_model("last")',
        "test_hooks.py::test_a_state_goes_on_from_phase_to_phase",
    ),
    Fault(
        "another attempt keeps the progress of the one before",
        "engine/run.py",
        "self.run, self.resumed, self.progress = None, True, Progress()",
        "self.run, self.resumed = None, True",
        "test_hooks.py::test_after_an_error_a_hook_may_have_it_go_on[2-an error-pytorch]",
    ),
    Fault(
        "before_step comes before each micro-batch",
        "parts/framework/pytorch.py",
        'if not losses:\n                run.tell_hooks("before_step")',
        'if True:\n                run.tell_hooks("before_step")',
        "test_hooks.py::test_every_moment_comes_once_and_in_order[pytorch]",
    ),
    Fault(
        "a resumed run averages anew",
        "parts/extras/ema.py",
        "fill(average, saved[name])",
        "pass",
        "test_ema.py::test_it_changes_no_step_and_resumes_bit_for_bit[pytorch]",
    ),
    Fault(
        "training goes on with the averages",
        "parts/extras/ema.py",
        "        finally:\n            self._exchange()",
        "        finally:\n            pass",
        "test_ema.py::test_it_changes_no_step_and_resumes_bit_for_bit[pytorch]",
    ),
    # --- dropout on edges
    Fault(
        "the gradient of an edge's weight does not know of dropout",
        "parts/workload/graph/model.py",
        "        to_scores = _dropped(to_scores, kept, ctx.dropout)\n",
        "",
        "test_graph_dropout.py::test_values_and_gradients_are_those_of_dropout_by_the_book",
    ),
    # --- rows
    Fault(
        "a resumed row forgets the steps before the stop",
        "engine/monitor.py",
        "self._open.setdefault(name, []).extend((total, count) for total, count in pairs)",
        "pass",
        "seams/test_rows.py::test_a_row_is_the_mean_over_its_steps_wherever_a_run_stops[pytorch]",
    ),
    Fault(
        "a row is the last step's",
        "engine/monitor.py",
        'self._open["loss"] += losses',
        'self._open["loss"] = losses',
        "seams/test_rows.py::test_a_row_is_the_mean_over_its_steps_wherever_a_run_stops[pytorch]",
    ),
    Fault(
        "one learning rate for all groups",
        "engine/optimization.py",
        'group["lr"] = peak * share',
        'group["lr"] = self.peak * share',
        "seams/test_rows.py::test_each_group_keeps_its_own_rate",
    ),
)

STEP = (
    Fault(
        "gradients are not cleared",
        "engine/precision.py",
        "raw.zero_grad(set_to_none=True)\n        return norm",
        "return norm",
        LOOP + "test_groups_do_not_leak_into_each_other[accelerate]",
    ),
    Fault(
        "loss / accumulate",
        "parts/framework/pytorch.py",
        "output.loss.backward(gradient=precision.scale(output.weight))",
        "output.loss.backward(gradient=precision.scale(output.weight * 0 + 1))",
        LOOP + "test_a_group_of_ragged_batches_equals_one_big_batch",
    ),
    Fault(
        "the group's loss is the last micro-batch's",
        "engine/monitor.py",
        "(values * weights).sum()",
        "(values * weights)[-1]",
        "test_watch.py::test_a_step_has_the_mean_loss_of_all_its_targets",
    ),
    Fault(
        "unclipped",
        "engine/precision.py",
        "torch.maximum(divisor, norm / clip) if clip else divisor",
        "divisor",
        LOOP + "test_clipping_is_that_of_torch_on_the_mean_gradient[pytorch-torch.float32-0.5]",
    ),
    Fault(
        "clipped before the division",
        "engine/precision.py",
        "torch.maximum(divisor, norm / clip) if clip else divisor",
        "divisor * torch.clamp(norm / clip, min=1) if clip else divisor",
        LOOP + "test_clipping_is_that_of_torch_on_the_mean_gradient[pytorch-torch.float32-0.5]",
    ),
    Fault(
        "averaged gradients are not made a sum again",
        "parts/framework/pytorch.py",
        "targets = distributed.sum(total(losses)).clamp(min=1) / distributed.world",
        "targets = distributed.sum(total(losses)).clamp(min=1)",
        LOOP + "test_two_ranks_that_average_gradients_equal_one[0.0-pytorch]",
    ),
    Fault(
        "every micro-batch is synchronised",
        "parts/framework/lightning.py",
        "with nullcontext() if closes else distributed.no_sync():",
        "with nullcontext():",
        LOOP + "test_gradients_stay_local_until_the_group_closes[lightning]",
    ),
    Fault(
        "a state reaches a fresh lane",
        "engine/progress.py",
        "each(masked, self.state)",
        "self.state",
        LOOP + "test_a_state_goes_on_in_its_lane_and_starts_at_zero_where_fresh[pytorch]",
    ),
    Fault(
        "a state is masked by multiplication",
        "engine/progress.py",
        "torch.where(goes_on.view(-1, *[1] * (state.dim() - 1)), state, torch.zeros_like(state))",
        "state * goes_on.view(-1, *[1] * (state.dim() - 1))",
        LOOP + "test_a_state_goes_on_in_its_lane_and_starts_at_zero_where_fresh[accelerate]",
    ),
    Fault(
        "a state keeps its graph",
        "engine/progress.py",
        "each(Tensor.detach, output.carry)",
        "output.carry",
        LOOP + "test_a_carried_state_is_cut_off_from_the_graph[pytorch]",
    ),
    Fault(
        "a state is carried across epochs",
        "engine/run.py",
        "self.recurrent.state = None",
        "pass",
        SESSION + "test_a_state_is_dropped_at_an_epochs_end_and_survives_a_stop[pytorch]",
    ),
)

FORMATS = (
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
        '"high" if tf32 else "highest"',
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
)

FRAMEWORKS = (
    Fault(
        "Lightning counts a resumed epoch from its beginning",
        "parts/framework/lightning.py",
        "self.first = self.number = self.run.progress.batch",
        "self.first = self.number = 0",
        "test_tier_b.py::test_a_run_goes_on_under_another_framework",
    ),
    Fault(
        "Lightning keeps the signals",
        "parts/framework/lightning.py",
        "self.run.session.listen()  # Lightning has just put its own signal handlers in place",
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
    Fault(
        "Lightning weighs micro-batches alike",
        "parts/framework/lightning.py",
        "self.manual_backward(output.loss, gradient=precision.scale(output.weight))",
        "self.manual_backward(output.loss, gradient=precision.scale(output.weight * 0 + 1))",
        LOOP + "test_groups_do_not_leak_into_each_other[lightning]",
    ),
    Fault(
        "Accelerate divides by one rank's targets",
        "parts/framework/accelerate.py",
        "targets = distributed.sum(total(losses)).clamp(min=1) / distributed.world",
        "targets = total(losses).clamp(min=1)",
        LOOP + "test_two_ranks_that_average_gradients_equal_one[0.0-accelerate]",
    ),
    Fault(
        "Lightning leaves the clipping out",
        "parts/framework/lightning.py",
        "precision.step(self.optimizers(), run.settings.training.gradient_clip, targets)",
        "precision.step(self.optimizers(), 0.0, targets)",
        LOOP + "test_clipping_is_that_of_torch_on_the_mean_gradient[lightning-torch.float32-0.5]",
    ),
)

TRACKERS = (
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
)

RATES = (
    Fault(
        "the warm-up begins at nothing",
        "engine/optimization.py",
        "return (step + 1) / warmup",
        "return step / warmup",
        "seams/test_schedule.py::test_warmup_then_decay_are_those_of_torch",
    ),
    Fault(
        "the schedule sets groups that are gone",
        "engine/optimization.py",
        "zip(self.optimizer.param_groups, self.peaks, strict=True):",
        "zip(self.__dict__.setdefault('old', self.optimizer.param_groups), self.peaks, strict=True):",
        "seams/test_schedule.py::test_a_loaded_optimizer_is_still_the_one_that_is_set",
    ),
    Fault(
        "biases decay",
        "engine/optimization.py",
        '"weight_decay": 0.0}',
        '"weight_decay": settings.weight_decay}',
        "seams/test_optimization.py::test_each_weight_is_optimized_once_and_only_matrices_decay",
    ),
)

ORDERS = (
    Fault(
        "every epoch in one order",
        "engine/order.py",
        "return Permutation(self.count, self.seed, epoch)(turns)",
        "return Permutation(self.count, self.seed)(turns)",
        ORDER + "test_seed_and_epoch_change_a_shuffled_order",
    ),
    Fault(
        "every seed in one order",
        "engine/order.py",
        "return Permutation(self.count, self.seed, epoch)(turns)",
        "return Permutation(self.count, 0, epoch)(turns)",
        ORDER + "test_seed_and_epoch_change_a_shuffled_order",
    ),
    Fault(
        "filled up with a real sample",
        "engine/order.py",
        "positions[positions >= self.count] = -1",
        "positions[positions >= self.count] = 0",
        ORDER + "test_an_epoch_has_each_sample_once",
    ),
    Fault(
        "all ranks read the same",
        "engine/order.py",
        "slots = self.rank * self.batch_size + np.arange(self.batch_size)",
        "slots = np.arange(self.batch_size)",
        LOADER + "test_two_ranks_share_an_epoch[train-full-memmap]",
    ),
    Fault(
        "a lane begins with another one's state",
        "parts/workload/timeseries/lanes.py",
        "(step == 0) | ~present",
        "(rows == 0) | ~present",
        ORDER + "test_a_lane_goes_on_in_time_and_says_where_it_begins",
    ),
    Fault(
        "lanes leak the future into their state",
        "parts/workload/timeseries/lanes.py",
        "np.minimum(lane, longer) + step)",
        "np.minimum(lane, longer) - step)",
        ORDER + "test_a_lane_goes_on_in_time_and_says_where_it_begins",
    ),
    Fault(
        "a fraction of other samples each time",
        "engine/order.py",
        "else positions * self.length // self.count",
        "else (positions * self.length + self.seed % 2) // self.count",
        ORDER + "test_fraction_is_a_share_of_the_samples_for_good",
    ),
    Fault(
        "a resume begins where the numbers were computed",
        "engine/order.py",
        "for first in range(start, len(self), some):",
        "for first in range(start - start % some, len(self), some):",
        ORDER + "test_an_epoch_begins_anywhere",
    ),
    Fault(
        "a shuffle beyond the count is folded back",
        "engine/order.py",
        "outside = np.flatnonzero(values >= self.count)\n        while",
        "values %= self.count\n        outside = values[:0]\n        while",
        ORDER + "test_a_permutation_is_one_to_one_and_has_an_inverse",
    ),
    Fault(
        "all blocks are shuffled alike",
        "engine/order.py",
        "np.uint32(0x9E3779B9)",
        "np.uint32(0)",
        ORDER + "test_each_block_has_a_shuffle_of_its_own",
    ),
    Fault(
        "a shuffle with too few rounds",
        "engine/order.py",
        "generate_state(max(6, 64 // bits))",
        "generate_state(2)",
        ORDER + "test_a_shuffle_looks_like_chance",
    ),
    Fault(
        "the order changes under the same rule",
        "engine/order.py",
        "np.uint32(0x846CA68B)",
        "np.uint32(0x846CA68D)",
        ORDER + "test_the_rule_is_that_of_its_number",
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
        "flat.index_fill_(0, on_device(source, np.flatnonzero(~present)), 0)",
        "pass",
        LOADER + "test_batches_hold_the_rows_of_their_samples[train-rows-time-memmap]",
    ),
    Fault(
        "workers change the order",
        "parts/loader/dataloader.py",
        "self.order.batches(self._epoch, self._start)",
        "self.order.batches(self._epoch + self.workers, self._start)",
        LOADER + "test_machine_settings_and_the_choice_of_loader_change_no_batch[full-host-dataloader]",
    ),
    Fault(
        "a resumed epoch begins at its beginning",
        "parts/loader/dataloader.py",
        "self.order.batches(self._epoch, self._start)",
        "self.order.batches(self._epoch)",
        LOADER + "test_any_position_can_be_resumed[0-time-dataloader]",
    ),
    Fault(
        "a resumed epoch reads the chunks of its beginning",
        "parts/loader/chunk.py",
        "self._chunks(number, start_batch, len(self))",
        "self._chunks(number, 0, len(self) - start_batch)",
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
        "rows = self._host(rows, numbers, number)",
        "rows = self._host(rows, numbers, 0)",
        LOADER + "test_batches_hold_the_rows_of_their_samples[train-host-time-memmap]",
    ),
)

EVALUATIONS = (
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
)

RUNS = (
    Fault(
        "the first steps are silent",
        "engine/monitor.py",
        "(step in FIRST and step < self.every)",
        "False",
        "test_first_run.py::test_first_steps_have_lines_of_their_own_with_the_time_left",
    ),
    Fault(
        "minutes outlast what the settings say",
        "commands/train.py",
        "int(min(fitting, own))",
        "int(fitting)",
        "test_first_run.py::test_minutes_take_no_more_steps_than_the_settings_say",
    ),
    Fault(
        "a resumed run takes another seed without a word",
        "commands/train.py",
        'key == "reproducibility.seed" or',
        "",
        "test_answers.py::test_a_resumed_run_refuses_what_would_make_it_another[--reproducibility.seed]",
    ),
    Fault(
        "symbols that training had not are answered as if it had",
        "parts/workload/seq2seq/predict.py",
        'if not trained.source.get("unknown", True):',
        "if False:",
        "test_answers.py::test_symbols_that_training_had_not_are_refused_or_counted",
    ),
    Fault(
        "resumed without random state",
        "engine/progress.py",
        'set_random_state(ranks[rank]["random"])',
        "pass",
        "test_tier_b.py::test_trains_stops_resumes_and_evaluates[default]",
    ),
    Fault(
        "resumed with the schedule's beginning",
        "engine/run.py",
        "self.schedule.set(self.step_of_phase)",
        "self.schedule.set(0)",
        "test_tier_b.py::test_trains_stops_resumes_and_evaluates[default]",
    ),
    Fault(
        "the dry run moves running statistics",
        "engine/optimization.py",
        "buffer.copy_(buffers[name])",
        "pass",
        SESSION + "test_the_dry_run_leaves_no_trace[tabular]",
    ),
    Fault(
        "the last short group is not counted",
        "engine/run.py",
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
        "_verify(target)  #",
        "pass  #",
        CHECKPOINT + "test_pruning_waits_until_the_new_one_verifies",
    ),
    Fault(
        "the best checkpoint is pruned",
        "engine/checkpoint.py",
        "if path.name != self.best():",
        "if path.name:",
        CHECKPOINT + "test_the_best_one_stays_until_another_is_better",
    ),
    Fault(
        "damaged checkpoints count as the newest",
        "engine/checkpoint.py",
        "if path <= target]",
        "if path]",
        CHECKPOINT + "test_damaged_ones_cost_no_whole_one",
    ),
    Fault(
        "a store deletes what is not its own",
        "engine/store.py",
        "OURS.fullmatch(old.name)",
        'old.name.startswith("store-")',
        STORE + "test_a_new_store_removes_the_old_one_and_nothing_else",
    ),
    Fault(
        "other facts are the same data",
        "engine/store.py",
        "known.append(self.facts)",
        "known.append({})",
        STORE + "test_the_same_bytes_under_other_facts_are_other_data",
    ),
    Fault(
        "old data get the fingerprint of today",
        "engine/store.py",
        'if "rule" in manifest else [2, 1]',
        'if "rule" in manifest else [2]',
        STORE + "test_a_store_of_format_1_is_read_and_known_by_both_rules_of_its_time",
    ),
    Fault(
        "the manifest comes before its files",
        "engine/store.py",
        "        for stale in self.folder.glob",
        "        write_json(self.folder / MANIFEST, {})\n        for stale in self.folder.glob",
        STORE + "test_a_full_disk_leaves_the_store_that_was_there",
    ),
    Fault(
        "predictions for new rows need the prepared data",
        "commands/evaluate.py",
        "None if needs_data else",
        "None if True else",
        "test_llm.py::test_it_learns_and_says_how_well",
    ),
    Fault(
        "damage that the guard finds ends nothing",
        "parts/extras/guard.py",
        "run.fail(self._error)",
        "pass",
        STORE + "test_the_guard_ends_a_run_on_damaged_data",
    ),
    Fault(
        "small data are not compared when they are opened",
        "engine/store.py",
        "<= SMALL_BYTES",
        "<= 0",
        STORE + "test_a_flipped_bit_is_found_at_opening_where_the_data_are_small",
    ),
    Fault(
        "waiting for the GPU counts as waiting for data",
        "engine/monitor.py",
        "time.perf_counter() - self.loader.stall_seconds - start",
        "time.perf_counter() - start",
        "test_loaders.py::test_waiting_for_the_gpu_is_no_wait_for_data",
    ),
    Fault(
        "a block is filled again before its copy to the GPU",
        "parts/loader/chunk/reader.py",
        "copied.synchronize()  # the copy",
        "copied  # the copy",
        "test_gpu_paths.py::test_copies_that_come_late_give_the_same_batches[Pages-0.125]",
    ),
    Fault(
        "a chunk is overwritten while the GPU reads it",
        "parts/loader/chunk/reader.py",
        "own.stream.wait_event(free)",
        "pass",
        "test_gpu_paths.py::test_copies_that_come_late_give_the_same_batches[Pages-0.125]",
    ),
    Fault(
        "a batch does not wait for its rows",
        "parts/loader/chunk/reader.py",
        "torch.cuda.current_stream(self.device).wait_event(copied)",
        "pass",
        "test_gpu_paths.py::test_copies_that_come_late_give_the_same_batches[Windows-auto]",
    ),
    Fault(
        "a GPU's random numbers come back only on as many GPUs",
        "engine/progress.py",
        "in (1, torch.cuda.device_count())",
        "in (torch.cuda.device_count(),)",
        "test_gpu_paths.py::test_a_run_finds_its_random_numbers_on_another_number_of_cards[2-1]",
    ),
    Fault(
        "resident rows are dropped for good",
        "parts/loader/chunk/chunks.py",
        "self._reside(epoch)\n                    break",
        "self.resident = {}\n                    break",
        "test_loaders.py::test_a_random_start_beyond_the_first_epochs_rows[chunk]",
    ),
    Fault(
        "resident rows of an earlier epoch are taken for this one's",
        "parts/loader/memmap.py",
        "if extents == self._extents:",
        "if self._resident:",
        "test_loaders.py::test_a_random_start_beyond_the_first_epochs_rows[memmap]",
    ),
    Fault(
        "resident rows are counted from the file's beginning",
        "parts/loader/memmap.py",
        "spans.starts - first, 0)",
        "spans.starts, 0)",
        "test_loaders.py::test_loaders_give_the_same_batches[time-Windows]",
    ),
    Fault(
        "a full disk kills at a row",
        "engine/monitor.py",
        "except OSError as error:\n            what",
        "except KeyError as error:\n            what",
        "test_resume.py::test_a_full_disk_ends_no_training_at_a_row",
    ),
    Fault(
        "other data are no obstacle",
        "engine/checkpoint.py",
        'if (fact := manifest["facts"].get(name)) not in same.get(name, [value]):',
        'if not (fact := name in manifest["facts"]):',
        CHECKPOINT + "test_other_facts_are_refused_before_anything_is_loaded",
    ),
    Fault(
        "a checkpoint without rules follows today's",
        "engine/checkpoint.py",
        'manifest["rules"].get(name, 1)',
        'manifest["rules"].get(name, rule)',
        CHECKPOINT + "test_the_format_before_rules_is_read_as_of_rule_one",
    ),
    Fault(
        "what was read whole once is believed for good",
        "engine/checkpoint.py",
        "if _verified.get(path) != stamp:",
        "if path not in _verified:",
        CHECKPOINT + "test_a_resume_reads_each_file_against_its_hash_once",
    ),
)

PROCESSES = (
    Fault(
        "metrics of rank 0 alone",
        "engine/evaluation.py",
        "sums = distributed.sum(torch.stack(list(totals.values()))).tolist()",
        "sums = torch.stack(list(totals.values())).tolist()",
        DISTRIBUTED + "test_two_ranks_train_stop_resume_and_evaluate_as_one[tabular-ddp]",
    ),
    Fault(
        "every rank writes",
        "parts/distributed/_group.py",
        "self.is_main = self.rank == 0",
        "self.is_main = True",
        DISTRIBUTED + "test_two_ranks_train_stop_resume_and_evaluate_as_one[tabular-ddp]",
    ),
    Fault(
        "gradients stay local after an accumulation",
        "parts/distributed/fsdp.py",
        "self._model.set_requires_gradient_sync(True)",
        "pass",
        "seams/test_ranks.py::test_two_ranks_take_the_steps_of_one[fsdp-0.0]",
    ),
    Fault(
        "a divisor of one rank's targets",
        "parts/framework/pytorch.py",
        "distributed.sum(total(losses)).clamp(min=1)",
        "(distributed.sum(total(losses)) * 0 + total(losses) * distributed.world).clamp(min=1)",
        "seams/test_ranks.py::test_two_ranks_take_the_steps_of_one[ddp-0.0]",
    ),
    Fault(
        "all ranks draw the same numbers",
        "assemble.py",
        "if distributed.rank:",
        "if distributed.rank < 0:",
        DISTRIBUTED + "test_each_rank_draws_numbers_of_its_own",
    ),
    Fault(
        "resumed with the random state of rank 0",
        "engine/progress.py",
        'set_random_state(ranks[rank]["random"])',
        'set_random_state(ranks[0]["random"])',
        DISTRIBUTED + "test_a_signal_to_one_rank_stops_all_after_the_same_step[pytorch]",
    ),
    Fault(
        "lanes go on with another rank's state",
        "engine/progress.py",
        "state[rank * size : (rank + 1) * size]",
        "state[:size]",
        "seams/test_progress.py::test_carried_states_find_their_lanes[2-1]",
    ),
    Fault(
        "smaller batches go on from another sample",
        "engine/progress.py",
        "self.progress.batch = self.progress.batch * slots // order.slots",
        "pass",
        DISTRIBUTED + "test_a_step_of_another_size_is_refused",
    ),
    Fault(
        "a signal stops one rank alone",
        "parts/distributed/_group.py",
        "return int(before[1])",
        "return number",
        DISTRIBUTED + "test_a_signal_to_one_rank_stops_all_after_the_same_step[pytorch]",
    ),
    Fault(
        "rows of another rank's shard",
        "parts/distributed/fsdp.py",
        "[low - start : high - start]",
        "[: high - low]",
        DISTRIBUTED + "test_shards_of_two_ranks_are_read_by_any_number[3]",
    ),
    Fault(
        "a bad loss of another rank is not seen",
        "engine/monitor.py",
        "not self.distributed.sum((~torch.stack(losses).isfinite()).sum())",
        "torch.stack(losses).isfinite().all()",
        DISTRIBUTED + "test_a_loss_of_one_rank_that_is_not_finite_is_told_once",
    ),
)

WORKLOADS = (
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
        "train[rows[0]] = True",
        "train[:] = True",
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
        "batch = values | {name: both[:, :history]}",
        "batch = values | {name: both[:, 1 : history + 1]}",
        "test_timeseries.py::test_a_window_belongs_to_the_split_that_holds_all_its_targets",
    ),
    Fault(
        "the series' scaler has seen validation and test",
        "parts/workload/timeseries/dataset.py",
        "bars.blocks(int(_closed(bars, base, base.times[last - 1 : last])[0]))",
        "bars.blocks()",
        "test_timeseries.py::test_noise_behind_the_training_border_changes_neither_scaler_nor_losses",
    ),
    Fault(
        "the windows' scaler has seen validation and test",
        "parts/workload/windows/dataset.py",
        "values[: border - first].reshape",
        "values.reshape",
        "test_windows.py::test_hdf5_is_read_as_it_is",
    ),
    Fault(
        "windows before a border share rows with those behind it",
        "parts/workload/windows/prepare.py",
        "max(splits[before][1] - purge, splits[before][0])",
        "splits[before][1]",
        "test_windows.py::test_hdf5_is_read_as_it_is",
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
        "start = caches[0].length if caches else 0",
        "start = 0",
        "test_llm.py::test_generating_with_a_cache_equals_without[5-flags0]",
    ),
)

SEQ2SEQ = (
    Fault(
        "attention sees the padding",
        "parts/workload/seq2seq/model.py",
        "bias = _positions(stack, length).masked_fill(absent, -math.inf)",
        "bias = _positions(stack, length).expand(len(source), -1, -1, -1)",
        "test_seq2seq.py::test_twenty_places_more_of_padding_change_nothing",
    ),
    Fault(
        "the decoder sees its target",
        "parts/workload/seq2seq/dataset.py",
        "functional.pad(target[:, :-1], (1, 0), value=self.start)",
        "target",
        "test_seq2seq.py::test_batches_hold_the_pairs_one_place_apart[memmap]",
    ),
    Fault(
        "a target sees the later ones",
        "parts/workload/seq2seq/model.py",
        "bias = _positions(stack, length).masked_fill(later, -math.inf)",
        "bias = _positions(stack, length)",
        "test_seq2seq.py::test_loss_and_gradients_are_those_of_the_library[as on a CPU-relu-eager]",
    ),
    Fault(
        "one denominator for all metrics",
        "parts/workload/seq2seq/model.py",
        '"exact_match": (exact.sum(), sample.sum())',
        '"exact_match": (exact.sum(), weight)',
        "test_seq2seq.py::test_each_metric_has_its_own_denominator",
    ),
    Fault(
        "predictions in the order of their lengths",
        "parts/workload/seq2seq/predict.py",
        "return [rows[number] for number in sorted(rows)]",
        "return list(rows.values())",
        "test_seq2seq.py::test_it_learns_and_says_how_well",
    ),
    Fault(
        "every shape is compiled anew",
        "parts/workload/seq2seq/model.py",
        "ragged = True",
        "ragged = None",
        "test_seq2seq.py::test_layers_compile_whole_and_for_any_lengths",
    ),
    Fault(
        "missing weights are drawn at random",
        "parts/workload/seq2seq/model.py",
        'if missing := sorted(report["missing_keys"]):',
        "if missing := []:",
        "test_seq2seq.py::test_pretrained_weights_that_do_not_fit_are_one_line[a weight-parts3]",
    ),
)

GRAPH = (
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

MACHINE = (
    Fault(
        "waiting for data is no cause",
        "parts/extras/watch.py",
        "if waits > WAITS:",
        "if waits > 1:",
        "test_watch.py::test_a_badly_used_device_gets_cause_and_remedy",
    ),
    Fault(
        "growth against the first epoch",
        "parts/extras/watch.py",
        "self._last = now",
        "self._last = self._last or now",
        "test_watch.py::test_growth_between_two_looks",
    ),
    Fault(
        "an alert on every line",
        "engine/monitor.py",
        "self._alerted.add(kind)",
        "pass",
        "test_watch.py::test_a_slow_loader_is_told_and_reported_once[pytorch]",
    ),
    Fault(
        "a busy GPU is a well used one",
        "parts/extras/watch.py",
        "if busy >= BUSY and roof >= ROOF:",
        "if busy >= BUSY:",
        "test_watch.py::test_a_badly_used_device_gets_cause_and_remedy",
    ),
    Fault(
        "one slow row is a slow loader",
        "engine/monitor.py",
        "if passed < STRETCH_SECONDS:",
        "if passed < 0:",
        "test_watch.py::test_waiting_for_data_is_judged_over_a_stretch[4-raise data.num_workers (4), then]",
    ),
    Fault(
        "the first row counts as slow",
        "engine/monitor.py",
        "if self.row is not None:",
        "if True:",
        "test_watch.py::test_waiting_for_data_is_judged_over_a_stretch[4-raise data.num_workers (4), then]",
    ),
    Fault(
        "the roof of one card for two",
        "parts/extras/watch.py",
        " * self.roof / run.project.distributed.world",
        " * self.roof",
        "test_watch.py::test_a_first_batch_gives_its_shapes_and_no_more",
    ),
    Fault(
        "an LSTM's backward costs nothing",
        "parts/extras/costs.py",
        "return forward if packet is aten.mkldnn_rnn_layer else 2 * forward",
        "return forward if packet is aten.mkldnn_rnn_layer else 0.0",
        "test_estimate.py::test_an_lstm_counts_all_its_steps",
    ),
    Fault(
        "memory that is freed counts on",
        "parts/extras/costs.py",
        "weakref.finalize(storage, self._hold, -size)",
        "pass",
        "test_estimate.py::test_recomputation_costs_flops_and_saves_memory",
    ),
    Fault(
        "the chunked loss costs nothing",
        "parts/extras/costs.py",
        "return 6.0 * args[0].numel() * args[1].shape[0]",
        "return 0.0",
        "test_estimate.py::test_a_language_model_counts_as_the_library_counts_it[true]",
    ),
    Fault(
        "accumulation is free",
        "parts/extras/costs.py",
        '"compute": accumulation * compute',
        '"compute": compute',
        "test_estimate.py::test_each_operation_takes_the_longer_of_its_flops_and_bytes",
    ),
    Fault(
        "products of 16 bits at the peak of TF32",
        "parts/extras/costs.py",
        "flops / (self.half_flops if half else self.flops)",
        "flops / self.flops",
        "test_estimate.py::test_each_operation_takes_the_longer_of_its_flops_and_bytes",
    ),
    Fault(
        "rounded down instead of to the nearest",
        "parts/extras/export.py",
        "whole = (weight / scale).round()",
        "whole = (weight / scale).trunc()",
        "test_export.py::test_an_lstm_says_what_int8_is_not",
    ),
    Fault(
        "saves count as training",
        "engine/run.py",
        'self.monitor.event(step, "checkpoint", seconds=seconds)',
        "pass",
        "test_watch.py::test_a_slow_loader_is_told_and_reported_once[pytorch]",
    ),
    Fault(
        "auto compiles where Triton does not run",
        "engine/optimization.py",
        "if capability < COMPILE_CAPABILITY:",
        "if capability < (7, 0):",
        "seams/test_optimization.py::test_whether_blocks_compile[auto-capability1-False]",
    ),
)

MEASURING = (
    Fault(
        "no row is ever flagged",
        "parts/extras/measurements.py",
        "if distance <= LIMIT * between:  # and so not for nan",
        "if not distance > 100 * LIMIT * between:",
        "test_benchmark.py::test_a_loss_strays_by_three_spreads_of_fp32s[losses2-True]",
    ),
    Fault(
        "nan is no other loss",
        "parts/extras/measurements.py",
        "if distance <= LIMIT * between:  # and so not for nan",
        "if not distance > LIMIT * between:",
        "test_benchmark.py::test_a_loss_strays_by_three_spreads_of_fp32s[losses4-True]",
    ),
    Fault(
        "gains of time without the batch's size",
        "parts/extras/measurements.py",
        '"samples_per_second": 1000 * trials[0]["samples"] / step["median"]',
        '"samples_per_second": 8000 / step["median"]',
        "test_benchmark.py::test_gains_are_ratios_of_samples_per_second",
    ),
    Fault(
        "the warm-up is timed",
        "parts/extras/trials.py",
        'timed = [row for row in rows if row["step"] > warmup]',
        "timed = rows",
        "test_benchmark.py::test_figures_of_a_run",
    ),
    Fault(
        "everything off begins at the highest rung",
        "parts/extras/benchmark.py",
        "for switch in reversed(enabled):",
        "for switch in enabled:",
        "test_benchmark.py::test_the_ladder_of_precisions_is_the_cards",
    ),
    Fault(
        "the plain loader shifts every epoch alike",
        "parts/extras/plain_loader.py",
        "number, epoch = np.array(key[:1]), key[1]",
        "number, epoch = np.array(key[:1]), 0",
        "test_loaders.py::test_loaders_give_the_same_batches[random_start-Ragged]",
    ),
    Fault(
        "a gain's repeats without what processes differ by",
        "parts/extras/measurements.py",
        "return STUDENT[min(count, len(STUDENT) + 1) - 2] * stdev(ratios)",
        "return stdev(ratios) / 2",
        "test_benchmark.py::test_figures_repeat_within_their_printed_spread[of processes-3]",
    ),
    Fault(
        "processes of other rounds are compared",
        "parts/extras/measurements.py",
        "zip(rates, reference, strict=False)",
        "zip(rates, reference[::-1], strict=False)",
        "test_benchmark.py::test_what_slows_both_processes_of_a_round_is_no_spread",
    ),
    Fault(
        "a skipped step is told again with every row",
        "engine/precision.py",
        "count, self._skipped = float(self._skipped), 0.0",
        "count = float(self._skipped)",
        PRECISION + "test_an_overflow_skips_its_step_and_halves_the_scale",
    ),
    Fault(
        "backward belongs to the next layer",
        "parts/extras/profiling.py",
        "numbered[event.sequence_nr] = module",
        "numbered[event.sequence_nr + 1] = module",
        "test_profile.py::test_backward_belongs_to_the_operation_of_its_number",
    ),
    Fault(
        "waiting for data is idle time",
        "parts/extras/profiling.py",
        "data = waited / seconds",
        "data = 0 * waited / seconds",
        "test_profile.py::test_shares_of_a_step",
    ),
    Fault(
        "tune takes what was lucky once",
        "parts/extras/tune.py",
        "gain - 1 <= spread",
        "gain <= 1",
        "test_tune.py::test_the_gain_must_exceed_the_spread[before1-after1-True]",
    ),
    Fault(
        "the effective batch grows",
        "parts/extras/tune.py",
        "groups >> doubled if keep else groups",
        "groups",
        "test_tune.py::test_the_effective_batch_is_kept",
    ),
)

SETTINGS = (
    Fault(
        "a weaker source wins",
        "config.py",
        "layer |= _without_switches(given, stronger, layer, notes)",
        "layer = _without_switches(given, stronger, layer, notes) | layer",
        "test_config.py::test_a_single_process_is_stronger_than_a_number_of_workers",
    ),
    Fault(
        "an unknown setting is never a mistake",
        "engine/config.py",
        "self.tolerant and not outranks_files(origin)",
        "not outranks_files(origin)",
        "test_config.py::test_settings_of_a_part_that_was_taken_away",
    ),
    Fault(
        "a word in a docstring makes a part of the settings",
        "engine/config.py",
        'f"\\n{declares}" in f"\\n{text}"',
        "declares in text",
        "test_config.py::test_a_section_in_a_hook_is_a_section_like_any_other",
    ),
    Fault(
        "a phase outranks the command line",
        "config.py",
        "for key, value in overlay.items() if not outranks_files(self.origins[key])",
        "for key, value in overlay.items()",
        "test_config.py::test_phases_stand_between_file_and_environment",
    ),
)

# The first of each family is tried in `make test`, all of them in `make test-all`.
SAME = "test_script.py::test_losses_evaluations_and_weights_are_those_of_the_package"
SCRIPTS = (
    Fault(
        "a script's step divides by the micro-batches",
        "parts/script/timeseries/train.py",
        "torch.stack(weights).sum().clamp(min=1))",
        "torch.stack(weights).mean().clamp(min=1) * accumulation)",
        SAME + "[3-timeseries]",
    ),
    Fault(
        "a script shuffles every epoch alike",
        "parts/script/llm/train.py",
        'data.batches("train", size, first, settings.seed, epoch)',
        'data.batches("train", size, first, settings.seed, 0)',
        SAME + "[1-llm]",
    ),
    Fault(
        "a script's evaluation is a mean of means",
        "parts/script/tabular/train.py",
        '{"loss": (loss * targets, targets), **metrics}',
        '{"loss": (loss, targets / targets), **metrics}',
        SAME + "[1-tabular]",
    ),
    Fault(
        "a script loses its random state",
        "parts/script/timeseries/train.py",
        'set_random_state(state.pop("random"))',
        'state.pop("random")',
        "test_script.py::test_goes_on_after_a_kill_at_a_random_point[0-timeseries]",
    ),
    Fault(
        "a script saves for a signal and ends for a later one",
        "parts/script/timeseries/train.py",
        "            if ending:\n",
        "            if ending := last or bool(stop):\n",
        "test_script.py::test_a_signal_right_after_the_question_for_it_loses_no_step",
    ),
    Fault(
        "a script keeps its place in units of steps",
        "parts/script/tabular/train.py",
        '"batch": 0 if ended else number}',
        '"batch": 0 if ended else number // accumulation}',
        "test_script.py::test_goes_on_after_a_kill_at_a_random_point[0-tabular]",
    ),
)

FAMILIES = {
    "hooks and rows": HOOKS,
    "check": CHECK,
    "pictures and the report": PICTURES,
    "weights": WEIGHTS,
    "the step": STEP,
    "number formats": FORMATS,
    "frameworks": FRAMEWORKS,
    "trackers": TRACKERS,
    "learning rates": RATES,
    "order and loaders": ORDERS,
    "evaluation": EVALUATIONS,
    "runs and checkpoints": RUNS,
    "several processes": PROCESSES,
    "the workload": WORKLOADS,
    "the workload seq2seq": SEQ2SEQ,
    "the workload graph": GRAPH,
    "scripts": SCRIPTS,
    "the machine, estimates, export": MACHINE,
    "measuring": MEASURING,
    "settings": SETTINGS,
}
FAULTS = [fault for family in FAMILIES.values() for fault in family]
